"""Whether the parts of a model have the shapes that the compiled library computes with.

The library walks over memory by a few sizes and checks none of it: a matrix of another shape would
be read beyond its end.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from roseinfer.kv_cache.cache import LayerShape, StateShape
from roseinfer.model.attention_layers import AttentionLayers
from roseinfer.model.experts import ExpertParts
from roseinfer.model.families import LayerInputs, LayerParts, NormPart, Parts, Stack
from roseinfer.model.latents import LatentParts
from roseinfer.model.linears import shape_of
from roseinfer.model.mixers import MixerParts
from roseinfer.native.library import MAX_EXPERTS, MAX_HEAD_DIM, PANEL_WIDTH


def find_misfit(parts: Parts, layers: AttentionLayers) -> str | None:
    """The first part that the library could not hold; None if it can hold all."""
    return next(_misfits(parts, layers), None)


def find_misfit_of_stack(stack: Stack, layers: AttentionLayers, hidden: int) -> str | None:
    """The same of layers alone, whose hidden states have `hidden` values."""
    return next(_misfits_inside(stack, layers, hidden), None)


def _misfits(parts: Parts, layers: AttentionLayers) -> Iterator[str]:
    rows, hidden = parts.embedding.weight.shape
    outputs, inputs = shape_of(parts.head)
    if inputs != hidden:
        yield f"the head reads {inputs} values, the embedding has {hidden}"
    if outputs > rows:
        yield f"the head has {outputs} ids, the embedding {rows}"
    if parts.positions is not None and parts.positions.weight.shape[1] != hidden:
        yield f"positions have {parts.positions.weight.shape[1]} values, not {hidden}"
    yield from _norm("last", parts.last, hidden)
    if parts.inputs is not None:
        yield from _inputs(parts.inputs, len(parts.layers), outputs, hidden)
    if (drafts := parts.drafts) is not None:
        yield from _matrix("projection", [drafts.projection], hidden, 2 * hidden)
        yield from _norm("of embeddings", drafts.embedding, hidden)
        yield from _norm("of hidden states", drafts.hidden, hidden)
    yield from _misfits_inside(parts, layers, hidden)


def _misfits_inside(stack: Stack, layers: AttentionLayers, hidden: int) -> Iterator[str]:
    if misfit := _shared_misfit(stack):
        yield misfit
        return
    shapes = head_shapes(stack, layers)
    widest = max((max(shape.key_dim, shape.value_dim) for shape in shapes), default=0)
    if widest > MAX_HEAD_DIM:
        yield f"heads of {widest} are above {MAX_HEAD_DIM}"
    if any(shape_of(linear)[1] % 2 for linear in stack.linears):
        yield "a matrix has an odd number of inputs"
    if stack.parallel and any(layer.experts is not None for layer in stack.layers):
        yield "there are experts beside attention"
    yield from _angles(stack, shapes)
    if stack.latents is not None and (stack.parallel or stack.angles is None):
        yield "there are latents without a rotation, or beside an MLP"
    if any((layer.latent is None) != (stack.latents is None) for layer in stack.attention):
        yield "some layers have latents and others have none"
    if stack.parallel and stack.mixers:
        yield "there are layers with a state beside others"
    attending = iter(shapes)
    for number, layer in enumerate(stack.layers):
        shape = next(attending) if layer.output is not None else None
        for misfit in _layer(layer, stack, shape, hidden):
            yield f"layer {number}: {misfit}"
    for mixer, state in zip(stack.mixers, layers.states, strict=True):
        yield from _mixer(mixer, state, hidden)
    for number, call in enumerate(layers.calls):
        heads = heads_of(stack.attention[number], shapes[number])
        if call.sinks is not None and tuple(call.sinks.shape) != (heads,):
            sinks = tuple(call.sinks.shape)
            yield f"attention {number}: sinks are {sinks}, not one for {heads} heads"


def head_shapes(parts: Stack, layers: AttentionLayers) -> list[LayerShape]:
    """The keys and values that each layer attends to, which may be those of another."""
    numbers = [
        own if part.kv_layer is None else part.kv_layer for own, part in enumerate(parts.attention)
    ]
    return [layers.shapes[number] for number in numbers]


def _shared_misfit(parts: Stack) -> str | None:
    """Keys and values must have been stored before another layer reads them."""
    for number, layer in enumerate(parts.attention):
        if (source := layer.kv_layer) is not None and (
            source >= number
            or parts.attention[source].kv_layer is not None
            or len(parts.attention) != len(parts.layers)
        ):
            return f"layer {number} attends to what layer {source} may not have stored"
    return None


def heads_of(layer: LayerParts, shape: LayerShape) -> int:
    """Of queries."""
    if layer.latent is not None:
        return layer.latent.heads
    return shape_of(layer.output)[1] // shape.value_dim


def _angles(parts: Stack, shapes: list[LayerShape]) -> Iterator[str]:
    if parts.angles is None:
        return
    for layer_type in sorted({layer.layer_type for layer in parts.attention}):
        widths = set()
        for table in parts.angles(layer_type, 1):
            widths.add(table.shape[1])
            if table.dtype != torch.float32 or table.dim() != 2:
                yield f"rotation is {table.dtype} with {table.dim()} dimensions, not float32 with 2"
        most, exact = 2 * max(widths), parts.latents is not None
        unrotated = shape_of(parts.latents.values)[1] if parts.latents is not None else 0
        for layer, shape in zip(parts.attention, shapes, strict=True):
            size = shape.key_dim - unrotated
            if layer.layer_type == layer_type and (
                len(widths) != 1 or most > size or (exact and most < size)
            ):
                yield f"rotation of {sorted(widths)} pairs in heads of {size}"


def _inputs(inputs: LayerInputs, layers: int, ids: int, hidden: int) -> Iterator[str]:
    rows, width = inputs.embedding.weight.shape
    if width != layers * inputs.width or rows < ids:
        yield f"inputs of layers are {(rows, width)}, not {ids} ids of {layers} * {inputs.width}"
    yield from _matrix("inputs of layers", [inputs.projection], width, hidden)
    yield from _norm("of inputs", inputs.norm, inputs.width)


def _layer(layer: LayerParts, parts: Stack, shape: LayerShape | None, hidden: int) -> Iterator[str]:
    if shape is not None:
        yield from _attention(layer, parts, shape, hidden)
    experts = layer.experts
    each = 1 if experts is None else experts.count
    if layer.down is not None:
        yield from _mlp("", layer.gate_up, layer.down, each, parts.gated, hidden)
    if experts is not None:
        yield from _experts(experts, layer, hidden)
        if experts.shared_down is not None:
            shared = experts.shared_gate_up, experts.shared_down
            yield from _mlp("shared ", *shared, 1, parts.gated, hidden)
    if (dense := layer.dense) is not None:
        yield from _mlp("dense ", dense.gate_up, dense.down, 1, parts.gated, hidden)
        for name in ("before", "after", "after_experts"):
            yield from _norm(f"{name} of the dense MLP", getattr(dense, name), hidden)
        if experts is None:
            yield "an MLP beside experts without these"
    if (inputs := layer.inputs) is not None:
        of_model = parts.inputs if isinstance(parts, Parts) else None
        width = 0 if of_model is None else of_model.width
        yield from _matrix("gate of inputs", [inputs.gate], width, hidden)
        yield from _matrix("output of inputs", [inputs.output], hidden, width)
        yield from _norm("after inputs", inputs.after, hidden)
    if layer.scale is not None and layer.scale.numel() != 1:
        yield f"{layer.scale.numel()} factors of hidden states"
    for name in ("before_attention", "after_attention", "before_mlp", "after_mlp"):
        yield from _norm(name, getattr(layer, name), hidden)


def _attention(layer: LayerParts, parts: Stack, shape: LayerShape, hidden: int) -> Iterator[str]:
    if layer.latent is not None:
        yield from _latent(layer, layer.latent, shape, hidden)
        return
    attended = shape_of(layer.output)[1]
    heads = heads_of(layer, shape)
    if attended % shape.value_dim or heads % shape.kv_heads:
        yield f"{attended} attended values are no whole groups of {shape.kv_heads} heads"
    width, kv = heads * shape.key_dim, shape.key_dim + shape.value_dim
    if layer.values_are_keys:
        kv = shape.key_dim
        if layer.value is None or shape.key_dim != shape.value_dim:
            yield "values that are keys have no norm, or another size"
    width += 0 if layer.kv_layer is not None else shape.kv_heads * kv
    if parts.gates_attention:
        width += attended
    yield from _matrix("qkv", layer.qkv, width, hidden)
    yield from _matrix("output", [layer.output], hidden, attended)
    several = parts.norms_rows or parts.norms_by_head
    queries, keys = (heads, shape.kv_heads) if several else (1, 1)
    yield from _norm("query", layer.query, queries * shape.key_dim)
    yield from _norm("key", layer.key, keys * shape.key_dim)
    yield from _norm("value", layer.value, shape.value_dim)
    if parts.norms_rows and layer.kv_layer is not None:
        yield "norms of rows include keys, and it has none"


def _latent(
    layer: LayerParts, latent: LatentParts, shape: LayerShape, hidden: int
) -> Iterator[str]:
    heads, rank, rotary = latent.heads, shape.value_dim, shape.key_dim - shape.value_dim
    unrotated, values = shape_of(latent.keys)[1], shape_of(latent.values)[0] // heads
    queries = heads * (unrotated + rotary)
    made = shape_of(layer.qkv[0])[0]
    if shape.kv_heads != 1 or rank % PANEL_WIDTH or values % PANEL_WIDTH:
        yield f"latents of {rank} and values of {values} are no multiples of {PANEL_WIDTH}"
    yield from _matrix("qkv", layer.qkv, made + shape.key_dim, hidden)
    if latent.query_norm is None:
        yield from _matrix("queries", layer.qkv[:1], queries, hidden)
    else:
        yield from _matrix("queries", latent.query, queries, made)
        if not _is_array(latent.query_norm, (made,)):
            yield f"the norm of what queries are made of is not {made} float32"
    yield from _matrix("keys", [latent.keys], heads * rank, unrotated)
    yield from _matrix("values", [latent.values], heads * values, rank)
    yield from _matrix("output", [layer.output], hidden, heads * values)
    if not _is_array(latent.norm, (rank,)):
        yield f"the norm of the latent is not {rank} float32"


def _mixer(mixer: MixerParts, state: StateShape, hidden: int) -> Iterator[str]:
    sums = (mixer.heads, mixer.keys, mixer.values) if mixer.heads else None
    if state != StateShape((mixer.kernel - 1, mixer.channels), sums):
        yield f"the state of {mixer.channels} channels and {mixer.heads} heads is {state}"
    if sums is not None:
        queries = 2 * mixer.groups * mixer.keys
        if mixer.groups < 1 or mixer.heads % mixer.groups:
            yield f"{mixer.heads} heads are no whole groups of {mixer.groups}"
        if mixer.channels != queries + mixer.heads * mixer.values:
            yield f"{mixer.channels} channels are not those of queries, keys and values"
        skip = mixer.step_bias if mixer.skip is None else mixer.skip
        for tensor in (mixer.decay, mixer.step_bias, skip):
            if tensor is None or not _is_array(tensor, (mixer.heads,)):
                yield f"decays are not those of {mixer.heads} heads"
        if mixer.norm is not None and not _is_array(mixer.norm, (mixer.mixed,)):
            yield f"the norm of what the heads make is not {mixer.mixed} float32"
        if mixer.normed < 1 or mixer.mixed % mixer.normed:
            yield f"a norm over {mixer.normed} of {mixer.mixed} values"
    if mixer.multipliers is not None and not _is_array(mixer.multipliers, (mixer.projected,)):
        yield f"the multipliers of what it projects are not {mixer.projected} float32"
    if mixer.bias is not None and not _is_array(mixer.bias, (mixer.channels,)):
        yield f"the convolution's bias is not {mixer.channels} float32"
    if mixer.taps.dtype != torch.float32:
        yield "the convolution is not float32"
    yield from _matrix("input", mixer.input, mixer.projected, hidden)
    yield from _matrix("output", [mixer.output], hidden, mixer.mixed)


def _mlp(
    name: str, gate_up: list[Any], down: Any, each: int, gated: bool, hidden: int
) -> Iterator[str]:
    """Of `each` experts, or of one MLP."""
    inner = shape_of(down)[1]
    yield from _matrix(f"{name}gate_up", gate_up, each * (2 if gated else 1) * inner, hidden)
    yield from _matrix(f"{name}down", [down], each * hidden, inner)


def _experts(experts: ExpertParts, layer: LayerParts, hidden: int) -> Iterator[str]:
    count, groups = experts.count, experts.groups
    if count > MAX_EXPERTS:
        yield f"{count} experts are above {MAX_EXPERTS}"
    if groups < 1 or count % groups or (groups > 1 and count // groups < 2):
        yield f"{count} experts are no {groups} groups of two or more"
    elif not 1 <= experts.chosen <= min(experts.chosen_groups, groups) * (count // groups):
        yield f"{experts.chosen} experts cannot be chosen of {experts.chosen_groups} groups"
    rows = count + experts.gates_shared
    if not _is_array(experts.router, (rows, hidden)):
        yield f"the router is {tuple(experts.router.shape)}, not {(rows, hidden)} float32"
    for each in (experts.bias, experts.router_bias, experts.scales):
        if each is not None and not _is_array(each, (count,)):
            yield f"a bias or factor of experts is {tuple(each.shape)}, not {count} float32"
    if experts.router_norm is not None and not _is_array(experts.router_norm, (hidden,)):
        yield f"the router's norm is not {hidden} float32"
    if experts.router_bias is not None and experts.gates_shared:
        yield "a router with a bias has the gate of the shared expert too"
    for linear in (*layer.gate_up, layer.down):
        outputs = shape_of(linear)[0] // max(count, 1)
        if outputs % PANEL_WIDTH:
            yield f"an expert has {outputs} outputs, no multiple of {PANEL_WIDTH}"


def _matrix(name: str, linears: list[Any], outputs: int, inputs: int) -> Iterator[str]:
    shapes = [shape_of(linear) for linear in linears]
    if sum(rows for rows, _ in shapes) != outputs or any(width != inputs for _, width in shapes):
        yield f"{name} has the shapes {shapes}, not {outputs} outputs of {inputs} inputs"
    for linear, (rows, _) in zip(linears, shapes, strict=True):
        if linear.bias is not None and tuple(linear.bias.shape) != (rows,):
            yield f"{name} has a bias of {tuple(linear.bias.shape)}"


def _norm(name: str, norm: NormPart | None, size: int) -> Iterator[str]:
    for tensor in () if norm is None else (norm.weight, norm.bias):
        if tensor is not None and not _is_array(tensor, (size,)):
            yield f"norm {name} is {tensor.dtype} {tuple(tensor.shape)}, not {size} float32"


def _is_array(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    return tensor.dtype == torch.float32 and tuple(tensor.shape) == shape
