"""The layers of a model as the compiled library reads them, with packed weights."""

from __future__ import annotations

from ctypes import pointer
from typing import Any

import torch
from torch import Tensor

from roseinfer.kv_cache.cache import LayerShape
from roseinfer.model.attention_layers import AttentionLayers, LayerCall
from roseinfer.model.experts import ExpertParts
from roseinfer.model.families import DenseParts, LayerParts, NormPart, Stack
from roseinfer.model.latents import LatentParts
from roseinfer.model.linears import give_weight, shape_of, take_weight, weight_of
from roseinfer.model.mixers import MixerParts
from roseinfer.model.quantized_linears import QuantizedLinears
from roseinfer.native import library as c
from roseinfer.native.huge_pages import HugePages, ask_for_huge_pages
from roseinfer.native.shapes import head_shapes, heads_of
from roseinfer.native.weights import (
    AnyMatrix,
    PackedMatrix,
    concatenate,
    concatenate_quantized,
)


class NativeLayers:
    """What the structures point to is kept here: they are valid as long as this object lives.

    The weights of linear layers are taken over, one layer at a time, until `restore`.
    """

    def __init__(
        self,
        stack: Stack,
        layers: AttentionLayers,
        context: int,
        quantized: QuantizedLinears | None = None,
    ) -> None:
        self._stack = stack
        shapes = head_shapes(stack, layers)
        # Before the layers lose their weights.
        heads = [heads_of(*each) for each in zip(stack.attention, shapes, strict=True)]
        self.weights = Weights(quantized)
        self.kept: list[Any] = []
        self._scratch = torch.empty(0)
        self.structs = (c.Layer * len(stack.layers))()
        self.attention = list[c.Layer]()
        self.mixers = list[c.Mixer]()
        for struct, part in zip(self.structs, stack.layers, strict=True):
            self._set_layer(struct, part)
        for struct, shape, count, call in zip(
            self.attention, shapes, heads, layers.calls, strict=True
        ):
            self._set_attention(struct, shape, count, call)
        for struct, part in zip(self.structs, stack.layers, strict=True):
            struct.scaling *= part.multipliers.scores
            struct.attention_scale = part.multipliers.attention
            struct.mixer_scale, struct.mlp_scale = part.multipliers.mixer, part.multipliers.mlp
            struct.scale = 1.0 if part.scale is None else float(part.scale)
        self._set_angles(stack, context)

    @property
    def fields(self) -> dict[str, Any]:
        """Those of `c.Model` that are about layers."""
        stack = self._stack
        return {
            "layers": self.structs,
            "count": len(stack.layers),
            "gated": stack.gated,
            "activation": stack.activation,
            "norms_rows": stack.norms_rows,
            "norms_by_head": stack.norms_by_head,
            "norms_rotated": stack.norms_rotated,
            "norms_sums": stack.norms_sums,
            "rotates_neighbours": stack.rotates_neighbours,
            "parallel": stack.parallel,
            "gates_attention": stack.gates_attention,
            "has_latents": stack.latents is not None,
            "gate_limit": stack.gate_limit,
            "gate_slope": stack.gate_slope,
            "gate_scale": stack.gate_scale,
        }

    @property
    def inner(self) -> int:
        """Of the widest MLP, experts aside."""
        return max(map(_inner_width, self.structs))

    def scratch(self, model: c.Model, rows: int, longest: int, threads: int) -> Tensor:
        """As much as a step needs of so many rows, the longest context `longest`."""
        needed = c.library().rose_scratch(model, rows, longest, threads)
        if len(self._scratch) < needed:
            self._scratch = torch.empty(needed)
            ask_for_huge_pages(self._scratch)
        return self._scratch

    def restore(self) -> None:
        """Give the model its weights back; this object cannot be used any more."""
        self.weights.restore()

    def norm(self, part: NormPart | None) -> c.Norm:
        if part is None:
            return c.Norm(None, None)
        bias = None if part.bias is None else address_of(self.keep(part.bias))
        return c.Norm(address_of(self.keep(part.weight)), bias)

    def keep(self, tensor: Tensor) -> Tensor:
        tensor = tensor.contiguous()
        self.kept.append(tensor)
        return tensor

    def _set_attention(
        self, struct: c.Layer, shape: LayerShape, heads: int, call: LayerCall
    ) -> None:
        struct.heads, struct.kv_heads = heads, shape.kv_heads
        struct.key_dim, struct.value_dim = shape.key_dim, shape.value_dim
        struct.window, struct.bidirectional = call.window or 0, not call.is_causal
        struct.scaling, struct.softcap = call.scaling, call.softcap or 0.0
        if call.sinks is not None:
            struct.sinks = address_of(self.keep(call.sinks.detach().float()))

    def _set_layer(self, struct: c.Layer, part: LayerParts) -> None:
        if part.mixer is not None:
            mixer = self._mixer(part.mixer)
            self.mixers.append(mixer)
            struct.mixer = pointer(mixer)
        if part.output is not None:
            struct.qkv = self.weights.take(part.qkv).struct
            struct.output = self.weights.take([part.output]).struct
            self.attention.append(struct)
        if part.latent is not None:
            latent = self._latent(part.latent)
            self.kept.append(latent)
            struct.latent = pointer(latent)
        if part.down is not None:
            struct.gate_up = self.weights.take(part.gate_up).struct
            struct.down = self.weights.take([part.down]).struct
        for name in ("before_attention", "after_attention", "before_mlp", "after_mlp"):
            setattr(struct, name, self.norm(getattr(part, name)))
        struct.query, struct.key = self.norm(part.query), self.norm(part.key)
        struct.value, struct.values_are_keys = self.norm(part.value), part.values_are_keys
        struct.shares_kv = part.kv_layer is not None
        if part.dense is not None:
            struct.dense = pointer(self._dense(part.dense))
        if part.inputs is not None:
            struct.input_gate = self.weights.take([part.inputs.gate]).struct
            struct.input_output = self.weights.take([part.inputs.output]).struct
            struct.after_input = self.norm(part.inputs.after)
        if part.experts is not None:
            experts = self._experts(part.experts)
            self.kept.append(experts)
            struct.experts = pointer(experts)

    def _dense(self, part: DenseParts) -> c.DenseMlp:
        dense = c.DenseMlp(
            gate_up=self.weights.take(part.gate_up).struct,
            down=self.weights.take([part.down]).struct,
            before=self.norm(part.before),
            after=self.norm(part.after),
            after_experts=self.norm(part.after_experts),
        )
        self.kept.append(dense)
        return dense

    def _latent(self, part: LatentParts) -> c.Latent:
        latent = c.Latent(
            keys=self.weights.take([part.keys]).struct,
            values=self.weights.take([part.values]).struct,
            norm=c.Norm(address_of(self.keep(part.norm)), None),
            epsilon=part.epsilon,
        )
        if part.query_norm is not None:
            latent.query = self.weights.take(part.query).struct
            latent.query_norm = c.Norm(address_of(self.keep(part.query_norm)), None)
        return latent

    def _mixer(self, part: MixerParts) -> c.Mixer:
        def kept(tensor: Tensor | None) -> int | None:
            return None if tensor is None else address_of(self.keep(tensor))

        return c.Mixer(
            input=self.weights.take(part.input).struct,
            output=self.weights.take([part.output]).struct,
            norm=c.Norm(kept(part.norm), None),
            taps=kept(part.taps),
            bias=kept(part.bias),
            decay=kept(part.decay),
            step_bias=kept(part.step_bias),
            skip=kept(part.skip),
            multipliers=kept(part.multipliers),
            mixing=part.mixing,
            channels=part.channels,
            kernel=part.kernel,
            groups=part.groups,
            heads=part.heads,
            keys=part.keys,
            values=part.values,
            normed=part.normed,
            gates_last=part.gates_last,
            epsilon=part.epsilon,
            beta_scale=part.beta_scale,
            least_step=part.steps[0],
            most_step=part.steps[1],
        )

    def _experts(self, part: ExpertParts) -> c.Experts:
        router = PackedMatrix(part.router, part.router_bias)
        self.kept.append(router)
        experts = c.Experts(
            router=router.struct,
            bias=None if part.bias is None else address_of(self.keep(part.bias)),
            scales=None if part.scales is None else address_of(self.keep(part.scales)),
            count=part.count,
            chosen=part.chosen,
            scoring=part.scoring,
            groups=part.groups,
            chosen_groups=part.chosen_groups,
            compared=part.compared,
            normalizes=part.normalizes,
            gates_shared=part.gates_shared,
            scale=part.scale,
        )
        if part.router_norm is not None:
            experts.router_norm = c.Norm(address_of(self.keep(part.router_norm)), None)
        if part.shared_down is not None:
            experts.shared_gate_up = self.weights.take(part.shared_gate_up).struct
            experts.shared_down = self.weights.take([part.shared_down]).struct
        return experts

    def _set_angles(self, stack: Stack, context: int) -> None:
        if stack.angles is None:
            return
        for layer_type in {part.layer_type for part in stack.attention}:
            cosines, sines = (self.keep(table) for table in stack.angles(layer_type, context))
            for struct, part in zip(self.attention, stack.attention, strict=True):
                if part.layer_type == layer_type:
                    struct.rotary = 2 * cosines.shape[1]
                    struct.cosines, struct.sines = cosines.data_ptr(), sines.data_ptr()


class Weights:
    """Packed weights, and the modules that they were taken from."""

    def __init__(self, quantized: QuantizedLinears | None) -> None:
        self._quantized = QuantizedLinears() if quantized is None else quantized
        self._pages = HugePages()
        self._taken: list[tuple[list[Any], list[int], list[torch.Size], AnyMatrix]] = []

    def take(self, linears: list[Any]) -> AnyMatrix:
        """The linear layers' weights as one matrix; they lose theirs."""
        biases = [linear.bias for linear in linears]
        if linears[0] in self._quantized:
            quantized = [self._quantized.pop(linear) for linear in linears]
            matrix: AnyMatrix = concatenate_quantized(quantized, biases)
        else:
            matrix = concatenate([weight_of(linear).detach() for linear in linears], biases)
        outputs = [shape_of(linear)[0] for linear in linears]
        shapes = [take_weight(linear) for linear in linears]
        matrix.move(self._pages)
        self._taken.append((linears, outputs, shapes, matrix))
        return matrix

    def restore(self) -> None:
        for linears, outputs, shapes, matrix in self._taken:
            weights = torch.split(matrix.unpack(), outputs)
            for linear, weight, shape in zip(linears, weights, shapes, strict=True):
                give_weight(linear, weight, shape)


def _inner_width(layer: c.Layer) -> int:
    """Of its MLP."""
    down = layer.dense.contents.down if layer.dense else layer.down
    width: int = 0 if layer.experts and not layer.dense else down.inputs
    return width


def address_of(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
