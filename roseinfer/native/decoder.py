"""A decoder of a common family, run by the compiled library on packed weights."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import c_int64, pointer
from typing import Any, NoReturn

import torch
from torch import Tensor

from roseinfer.kv_cache.block_pool import BlockPool
from roseinfer.kv_cache.cache import KVCache
from roseinfer.model.attention_layers import AttentionLayers
from roseinfer.model.experts import ExpertParts
from roseinfer.model.families import (
    DenseParts,
    DraftParts,
    LayerInputs,
    LayerParts,
    NormPart,
    Parts,
    find_parts,
)
from roseinfer.model.latents import LatentParts
from roseinfer.model.limits import model_type
from roseinfer.model.linears import give_weight, shape_of, take_weight, weight_of
from roseinfer.model.mixers import MixerParts
from roseinfer.model.probe import probe_tokens
from roseinfer.model.quantized_linears import QuantizedLinears
from roseinfer.model.routes import FollowedRoutes
from roseinfer.native import library as c
from roseinfer.native.huge_pages import HugePages, ask_for_huge_pages
from roseinfer.native.shapes import find_misfit, head_shapes, heads_of
from roseinfer.native.weights import (
    AnyMatrix,
    PackedMatrix,
    concatenate,
    concatenate_quantized,
)
from roseinfer.sessions.session import Chunk, DeviceTokens

_DTYPES = (torch.float32, torch.bfloat16)
_DRAFTED_IDS = 32_768  # a multiple of c.PANEL_WIDTH


def build_decoder(
    model: Any,
    layers: AttentionLayers,
    context: int,
    quantized: QuantizedLinears | None = None,
) -> NativeDecoder | str:
    """A decoder for `model`, contexts up to `context` tokens; or why it cannot be compiled.

    The decoder takes the weights of linear layers and embeddings over, one layer at a time: `model`
    cannot be run any more, until `restore`. Of linear layers in `quantized` it takes those.
    """
    if not c.available():
        return c.missing_reason()
    if model.dtype not in _DTYPES:
        return f"it computes in float32 and bfloat16, not in {model.dtype}"
    parts = find_parts(model, layers)
    layers = layers.compacted()
    if parts is None:
        return f"it does not know this kind of {model_type(model)} model"
    misfit = find_misfit(parts, layers)
    if misfit is not None:
        return f"it does not hold this model: {misfit}"
    # The load probe's sequences may be longer than the requests that are allowed.
    return NativeDecoder(parts, layers, max(context, probe_tokens(model)), quantized)


class NativeDecoder:
    """Steps of packed batches, in one call each. Not thread-safe."""

    # Keys of a block, and values of a head, are padded to whole vectors.
    cache_padding = c.PANEL_WIDTH
    compacts = True
    runs_ahead = False
    batch_invariant = True

    def __init__(
        self,
        parts: Parts,
        layers: AttentionLayers,
        context: int,
        quantized: QuantizedLinears | None,
        drafts_for: NativeDecoder | None = None,
    ) -> None:
        """A model that drafts for another one has that one's embedding and head."""
        shapes = head_shapes(parts, layers)
        # Before the layers lose their weights.
        heads = [heads_of(*each) for each in zip(parts.attention, shapes, strict=True)]
        self._weights = _Weights(quantized)
        self._kept: list[Any] = []  # what the structures point to
        self._layers = (c.Layer * len(parts.layers))()
        self._attention = list[c.Layer]()
        self._mixers = list[c.Mixer]()
        for struct, part in zip(self._layers, parts.layers, strict=True):
            self._set_layer(struct, part)
        for struct, shape, count in zip(self._attention, shapes, heads, strict=True):
            struct.heads, struct.kv_heads = count, shape.kv_heads
            struct.key_dim, struct.value_dim = shape.key_dim, shape.value_dim
        self._kv_layers = [part.kv_layer for part in parts.attention]
        for struct, call in zip(self._attention, layers.calls, strict=True):
            struct.window = call.window or 0
            struct.scaling, struct.softcap = call.scaling, call.softcap or 0.0
            if call.sinks is not None:
                struct.sinks = _pointer(self._keep(call.sinks.detach().float()))
        for struct, part in zip(self._layers, parts.layers, strict=True):
            struct.scaling *= part.multipliers.scores
            struct.attention_scale = part.multipliers.attention
            struct.mixer_scale, struct.mlp_scale = part.multipliers.mixer, part.multipliers.mlp
            struct.scale = 1.0 if part.scale is None else float(part.scale)
        self._set_angles(parts, context)
        self._replaced_ids = parts.replaced_ids
        self._struct = self._model(parts, context, drafts_for)
        self.hidden_size: int = self._struct.hidden
        self._vocabulary: int = self._struct.head.outputs
        self._scratch = torch.empty(0)
        self._cache: KVCache | None = None  # kept here, for the structures point into it

    # Setting up

    def _model(self, parts: Parts, context: int, drafts_for: NativeDecoder | None) -> c.Model:
        if drafts_for is None:
            # Of a tied embedding the head's panels serve; another one stays the model's.
            tied = parts.head.weight is parts.embedding.weight
            self._embedding_rows = len(parts.embedding.weight)
            embedding = None if tied else _pointer(self._keep(parts.embedding.weight.detach()))
            embedding_is_bfloat = parts.embedding.weight.dtype == torch.bfloat16
        else:
            self._kept.append(drafts_for)
            self._embedding_rows = drafts_for._embedding_rows
            embedding = drafts_for._struct.embedding
            embedding_is_bfloat = drafts_for._struct.embedding_is_bfloat
        positions = None
        if parts.positions is not None:
            positions = self._keep(parts.positions.weight.detach()[:context].float())
            context = len(positions)
        scales = None if parts.query_scales is None else self._keep(parts.query_scales(context))
        inputs, width = None, 0
        if parts.inputs is not None:
            inputs, width = pointer(self._inputs(parts.inputs)), parts.inputs.width
            self._embedding_rows = min(self._embedding_rows, len(parts.inputs.embedding.weight))
        if drafts_for is None:
            head = self._weights.take([parts.head]).struct
        else:
            head = _first_ids(drafts_for._struct.head)
        drafts = None if parts.drafts is None else pointer(self._draft_inputs(parts.drafts))
        return c.Model(
            layers=self._layers,
            inputs=inputs,
            drafts=drafts,
            embedding=embedding,
            positions=_pointer(positions),
            query_scales=_pointer(scales),
            head=head,
            last=self._norm(parts.last),
            embedding_is_bfloat=embedding_is_bfloat,
            embedding_rows=self._embedding_rows,
            context=context,
            count=len(parts.layers),
            hidden=head.inputs,
            inner=max([width, *map(_inner_width, self._layers)]),
            gated=parts.gated,
            activation=parts.activation,
            norms_rows=parts.norms_rows,
            norms_by_head=parts.norms_by_head,
            norms_rotated=parts.norms_rotated,
            rotates_neighbours=parts.rotates_neighbours,
            parallel=parts.parallel,
            gates_attention=parts.gates_attention,
            has_latents=parts.latents is not None,
            epsilon=parts.last.epsilon,
            embedding_scale=parts.embedding_scale,
            logit_softcap=parts.logit_softcap,
            gate_limit=parts.gate_limit,
            gate_slope=parts.gate_slope,
            gate_scale=parts.gate_scale,
        )

    def _draft_inputs(self, part: DraftParts) -> c.DraftInputs:
        inputs = c.DraftInputs(
            projection=self._weights.take([part.projection]).struct,
            embedding=self._norm(part.embedding),
            hidden=self._norm(part.hidden),
        )
        self._kept.append(inputs)
        return inputs

    def _set_layer(self, struct: c.Layer, part: LayerParts) -> None:
        if part.mixer is not None:
            mixer = self._mixer(part.mixer)
            self._mixers.append(mixer)
            struct.mixer = pointer(mixer)
        if part.output is not None:
            struct.qkv = self._weights.take(part.qkv).struct
            struct.output = self._weights.take([part.output]).struct
            self._attention.append(struct)
        if part.latent is not None:
            latent = self._latent(part.latent)
            self._kept.append(latent)
            struct.latent = pointer(latent)
        if part.down is not None:
            struct.gate_up = self._weights.take(part.gate_up).struct
            struct.down = self._weights.take([part.down]).struct
        for name in ("before_attention", "after_attention", "before_mlp", "after_mlp"):
            setattr(struct, name, self._norm(getattr(part, name)))
        struct.query, struct.key = self._norm(part.query), self._norm(part.key)
        struct.value, struct.values_are_keys = self._norm(part.value), part.values_are_keys
        struct.shares_kv = part.kv_layer is not None
        if part.dense is not None:
            struct.dense = pointer(self._dense(part.dense))
        if part.inputs is not None:
            struct.input_gate = self._weights.take([part.inputs.gate]).struct
            struct.input_output = self._weights.take([part.inputs.output]).struct
            struct.after_input = self._norm(part.inputs.after)
        if part.experts is not None:
            experts = self._experts(part.experts)
            self._kept.append(experts)
            struct.experts = pointer(experts)

    def _dense(self, part: DenseParts) -> c.DenseMlp:
        dense = c.DenseMlp(
            gate_up=self._weights.take(part.gate_up).struct,
            down=self._weights.take([part.down]).struct,
            before=self._norm(part.before),
            after=self._norm(part.after),
            after_experts=self._norm(part.after_experts),
        )
        self._kept.append(dense)
        return dense

    def _inputs(self, part: LayerInputs) -> c.LayerInputs:
        inputs = c.LayerInputs(
            embedding=_pointer(self._keep(part.embedding.weight.detach())),
            projection=self._weights.take([part.projection]).struct,
            norm=self._norm(part.norm),
            width=part.width,
            embedding_scale=part.embedding_scale,
            projection_scale=part.projection_scale,
            scale=part.scale,
        )
        self._kept.append(inputs)
        return inputs

    def _latent(self, part: LatentParts) -> c.Latent:
        latent = c.Latent(
            keys=self._weights.take([part.keys]).struct,
            values=self._weights.take([part.values]).struct,
            norm=c.Norm(_pointer(self._keep(part.norm)), None),
            epsilon=part.epsilon,
        )
        if part.query_norm is not None:
            latent.query = self._weights.take(part.query).struct
            latent.query_norm = c.Norm(_pointer(self._keep(part.query_norm)), None)
        return latent

    def _mixer(self, part: MixerParts) -> c.Mixer:
        def kept(tensor: Tensor | None) -> int | None:
            return None if tensor is None else _pointer(self._keep(tensor))

        return c.Mixer(
            input=self._weights.take(part.input).struct,
            output=self._weights.take([part.output]).struct,
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
        self._kept.append(router)
        experts = c.Experts(
            router=router.struct,
            bias=None if part.bias is None else _pointer(self._keep(part.bias)),
            scales=None if part.scales is None else _pointer(self._keep(part.scales)),
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
            experts.router_norm = c.Norm(_pointer(self._keep(part.router_norm)), None)
        if part.shared_down is not None:
            experts.shared_gate_up = self._weights.take(part.shared_gate_up).struct
            experts.shared_down = self._weights.take([part.shared_down]).struct
        return experts

    def _set_angles(self, parts: Parts, context: int) -> None:
        if parts.angles is None:
            return
        for layer_type in {part.layer_type for part in parts.attention}:
            cosines, sines = (self._keep(table) for table in parts.angles(layer_type, context))
            for struct, part in zip(self._attention, parts.attention, strict=True):
                if part.layer_type == layer_type:
                    struct.rotary = 2 * cosines.shape[1]
                    struct.cosines, struct.sines = cosines.data_ptr(), sines.data_ptr()

    def _norm(self, part: NormPart | None) -> c.Norm:
        if part is None:
            return c.Norm(None, None)
        bias = None if part.bias is None else _pointer(self._keep(part.bias))
        return c.Norm(_pointer(self._keep(part.weight)), bias)

    def _keep(self, tensor: Tensor) -> Tensor:
        tensor = tensor.contiguous()
        self._kept.append(tensor)
        return tensor

    def restore(self) -> None:
        """Give the model its weights back; this decoder cannot be used any more."""
        self._weights.restore()

    @property
    def eager(self) -> NativeDecoder:
        return self

    def bind(self, cache: KVCache) -> None:
        """Use `cache`, made with `cache_padding`, from now on."""
        self._cache = cache
        self._struct.block_size, self._struct.blocks = cache.block_size, cache.num_blocks
        self._struct.cache_is_bfloat = (cache.keys or cache.inputs)[0].dtype == torch.bfloat16
        for struct, keys, values in zip(self._attention, cache.keys, cache.values, strict=True):
            ask_for_huge_pages(keys)
            ask_for_huge_pages(values)
            struct.keys, struct.values = keys.data_ptr(), values.data_ptr()
        for struct, source in zip(self._attention, self._kv_layers, strict=True):
            if source is not None:
                stored = self._attention[source]
                struct.keys, struct.values = stored.keys, stored.values
        self._struct.slots = len(cache.inputs[0]) if self._mixers else 0
        for mixer, inputs, sums in zip(self._mixers, cache.inputs, cache.sums, strict=True):
            mixer.inputs, mixer.sums = inputs.data_ptr(), _pointer(sums)

    # Steps

    def run(
        self,
        chunks: Sequence[Chunk],
        *,
        every_row: bool = False,
        device_tokens: DeviceTokens | None = None,  # noqa: ARG002 - never given: it does not run ahead
        routes: FollowedRoutes | None = None,
    ) -> tuple[list[Chunk], Tensor]:
        """Compute `chunks`; returns them in row order, and logits, float32.

        Logits are [S, V] for the S rows that the chunks want, or [T, V] for every row.
        """
        if self._cache is None:
            raise RuntimeError("a step was asked for before `bind` gave a cache")
        self._cache.copy_states()
        batch = Batch()
        for chunk in chunks:
            self._add(batch, chunk, self._cache.pool, every_row=every_row)
        hidden = None if every_row else self._room_for_hidden(chunks, batch)
        logits = self.compute(batch, hidden=hidden, routes=routes, chunks=chunks)
        return list(chunks), logits

    def _add(self, batch: Batch, chunk: Chunk, pool: BlockPool, *, every_row: bool) -> None:
        session = chunk.session
        ids = chunk.input_ids(None)
        if self._replaced_ids:
            ids = [self._replaced_ids.get(i, i) for i in ids]
        kept, logits = chunk.kept_rows, chunk.logit_rows
        if every_row:
            kept = logits = chunk.count
        before, known = session.computed, chunk.end - len(chunk.drafts)
        for tokens, slot in sorted(session.state.writes(pool, before, known)):
            batch.writes.extend((len(batch.computed), tokens - before - 1, slot))
        batch.slots.append(session.state.slot)
        batch.add(ids, before, session.blocks, kept=kept, logits=logits)

    def _room_for_hidden(self, chunks: Sequence[Chunk], batch: Batch) -> Tensor | None:
        """For the hidden states of kept rows; each chunk gets those that it wants."""
        if not any(chunk.hidden_rows for chunk in chunks):
            return None
        hidden, end = torch.empty(len(batch.kept), self.hidden_size), 0
        for chunk in chunks:
            end += chunk.kept_rows
            chunk.hidden = hidden[end - chunk.hidden_rows : end]
        return hidden

    def compute(
        self,
        batch: Batch,
        *,
        before: Tensor | None = None,
        hidden: Tensor | None = None,
        routes: FollowedRoutes | None = None,
        chunks: Sequence[Chunk] = (),
    ) -> Tensor:
        """One step; the logits [S, V] of the rows that want some.

        `hidden` [K, H] takes the hidden states of the K rows that the batch keeps. `before` [T, H]
        are those that a model which drafts goes on from. `routes` are those of `chunks`.
        """
        logits = torch.empty(len(batch.logit_indices), self._vocabulary)
        threads = torch.get_num_threads()
        rows = len(batch.ids)
        needed = c.library().rose_scratch(self._struct, rows, batch.longest, threads)
        if len(self._scratch) < needed:
            self._scratch = torch.empty(needed)
            ask_for_huge_pages(self._scratch)
        all_have_logits = len(batch.kept) == len(batch.logit_indices)
        step = c.Step(
            *(_address(values) for values in (batch.ids, batch.first, batch.computed)),
            *(_address(values) for values in (batch.tables, batch.table_offsets)),
            *(_address(values) for values in (batch.slots, batch.writes, batch.kept)),
            None if all_have_logits else _address(batch.logit_indices),
            _pointer(before),
            _pointer(hidden),
            logits.data_ptr(),
            self._scratch.data_ptr(),
            None,
            None,
            rows,
            len(batch.computed),
            len(batch.kept),
            len(batch.logit_indices),
            len(batch.tables),
            len(batch.writes) // 3,
            threads,
        )
        if routes is None:
            self._decode(step, batch)
        else:
            self._follow(routes, chunks, step, batch)
        return logits

    def _decode(self, step: c.Step, batch: Batch) -> None:
        fault = c.library().rose_decode(self._struct, step)
        if fault:
            self._refuse(fault, batch)

    def _follow(
        self, routes: FollowedRoutes, chunks: Sequence[Chunk], step: c.Step, batch: Batch
    ) -> None:
        choices, agreed = self._choices(routes, chunks), c_int64()
        step.routes, step.agreed = choices.data_ptr(), pointer(agreed)
        self._decode(step, batch)
        routes.count(choices.numel(), agreed.value)

    def _choices(self, routes: FollowedRoutes, chunks: Sequence[Chunk]) -> Tensor:
        choices = routes.choices(chunks).contiguous()
        wanted = [layer.experts.contents.chosen for layer in self._layers if layer.experts]
        if [choices.shape[2]] * len(choices) != wanted:
            raise ValueError(f"routes of the shape {tuple(choices.shape)} for layers of {wanted}")
        return choices

    def _refuse(self, fault: int, batch: Batch) -> NoReturn:
        unknown = [i for i in batch.ids if not 0 <= i < self._embedding_rows]
        detail = f" (id {unknown[0]} of {self._embedding_rows} rows)" if unknown else ""
        raise ValueError(f"the compiled decoder refused a step: {c.FAULTS[fault]}{detail}")


class Batch:
    """The arrays of one step, see `struct Step` in types.h."""

    def __init__(self) -> None:
        self.ids, self.first, self.computed = array("q"), array("q", [0]), array("q")
        self.tables, self.table_offsets = array("q"), array("q")
        self.kept, self.logit_indices = array("q"), array("q")
        self.slots, self.writes = array("q"), array("q")
        self.longest = 0

    def add(
        self, ids: Sequence[int], computed: int, table: Sequence[int], *, kept: int, logits: int
    ) -> None:
        """A sequence's next tokens. Of its rows the last `kept` leave the last layer, and of these
        the last `logits` have logits."""
        self.ids.extend(ids)
        rows = len(self.ids)
        self.first.append(rows)
        self.computed.append(computed)
        self.table_offsets.append(len(self.tables))
        self.tables.extend(table)
        self.longest = max(self.longest, computed + len(ids))
        self.kept.extend(range(rows - kept, rows))
        self.logit_indices.extend(range(len(self.kept) - logits, len(self.kept)))


class _Weights:
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


def _first_ids(head: c.Matrix) -> c.Matrix:
    """The panels of the first ids only. Tokenizers number what they have merged in the order of how
    often it came, so these are nearly all that texts are made of; a draft that is missed costs a
    row, and the whole head would cost far more."""
    count = head.outputs if head.next else min(head.outputs, _DRAFTED_IDS)
    return c.Matrix(head.panels, head.bias, head.next, count, head.inputs, head.type)


def _inner_width(layer: c.Layer) -> int:
    """Of its MLP."""
    down = layer.dense.contents.down if layer.dense else layer.down
    width: int = 0 if layer.experts and not layer.dense else down.inputs
    return width


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _address(values: array[int]) -> int:
    return values.buffer_info()[0]
