"""The parts of a decoder in transformers' models of the common families.

Nothing is taken on trust: a decoder built from them is compared with the model's logits.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor, nn

from roseinfer.model.attention_layers import AttentionLayers
from roseinfer.model.experts import ExpertParts, find_experts, find_gemma4_experts
from roseinfer.model.latents import LatentParts, find_latents, has_latents
from roseinfer.model.limits import text_config
from roseinfer.model.linears import (
    PLAIN,
    GroupedLinear,
    RepeatedLinear,
    StackedLinear,
    children,
    mlp_linears,
    parameter_of,
)
from roseinfer.model.mixers import MixerParts, find_mixer
from roseinfer.model.shared_keys import shares_keys, source_layers


class Activation(IntEnum):
    """As types.h numbers them."""

    SILU = 0
    GELU_TANH = 1
    CLAMPED = 2
    RELU_SQUARED = 3
    GELU = 4


ACTIVATIONS = {
    "silu": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
    "relu2": Activation.RELU_SQUARED,
    "gelu": Activation.GELU,
}
_LLAMA_LIKE = (
    *("llama", "mistral", "ministral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
    *("phi3", "smollm3", "granite", "starcoder2", "stablelm", "seed_oss", "cwm"),
    *("olmo2", "olmo3", "exaone4"),
    *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "flex_olmo", "granitemoe", "granitemoeshared"),
    *("glm4_moe", "dots1", "minimax_m2", "gpt_oss", "ernie4_5_moe"),
    *("ernie4_5", "glm", "glm4", "cohere", "cohere2", "phi"),
    *("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "lfm2", "lfm2_moe"),
    *("granitemoehybrid", "bamba", "nemotron_h", "arcee", "nemotron", "olmo"),
    *("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu", "falcon_h1"),
    *("gemma4_text", "vaultgemma", "internlm3", "iquestcoder", "jais2"),
    *("solar_open", "exaone_moe", "hy_v3", "lfm3", "ministral3", "mistral4"),
    *("hunyuan_v1_dense", "hunyuan_v1_moe"),
)

# Encoders whose layers are like a Llama's.
_ENCODERS = ("eurobert",)

# Of what goes into the activation nothing multiplies the rest.
_NOT_GATED = ("starcoder2", "phi", "nemotron_h", "arcee", "nemotron", "jais2")

# Norms of queries and keys are over all heads.
_NORMS_ROWS = ("olmo2", "olmo3", "olmoe", "flex_olmo", "minimax_m2", "olmo_hybrid")

# And these are behind their rotation.
_NORMS_ROTATED = ("hunyuan_v1_dense", "hunyuan_v1_moe")

# What attention makes is multiplied by gates, which belong to the queries' projection.
_GATES_ATTENTION = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")

# Pairs that are rotated together are neighbours.
_ROTATES_NEIGHBOURS = (
    *("ernie4_5", "ernie4_5_moe", "glm", "glm4", "cohere", "cohere2", "deepseek_v2"),
)

# The MLP is beside attention; StableLM may have it so.
_PARALLEL = ("cohere", "cohere2", "phi")

# A type of layer whose queries and keys are not rotated.
_UNROTATED = "unrotated"

# Cosines and sines [positions, rotary / 2] of the first so many positions, for a type of layer.
Angles = Callable[[str, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class NormPart:
    """Float32 [n]; a layer norm if there is a bias, otherwise an RMS norm."""

    weight: Tensor
    epsilon: float
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class DenseParts:
    """An MLP that computes all tokens beside a layer's experts, and the norm behind these."""

    gate_up: list[Any]
    down: Any
    before: NormPart | None
    after: NormPart | None
    after_experts: NormPart | None

    @property
    def fused_linears(self) -> list[list[Any]]:
        return [self.gate_up, [self.down]]


@dataclass(frozen=True, slots=True)
class InputBranch:
    """What a layer makes of its own inputs of each token: its gate reads hidden states."""

    gate: Any
    output: Any
    after: NormPart | None

    @property
    def fused_linears(self) -> list[list[Any]]:
        return [[self.gate], [self.output]]


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """Inputs of `width` that each layer has of its own: of a token's id `embedding` [V, layers *
    width], and `projection` of the token's embedding, through `norm`."""

    embedding: Any
    projection: Any
    norm: NormPart
    width: int
    embedding_scale: float
    projection_scale: float
    scale: float  # of the sum of both


@dataclass(frozen=True, slots=True)
class DraftParts:
    """What a model begins with that drafts for another one: `projection` [hidden, 2 * hidden] of a
    token's embedding and of the other's hidden states, each through a norm."""

    projection: Any
    embedding: NormPart
    hidden: NormPart


class Multipliers(NamedTuple):
    """Of the scores, and of what each branch adds."""

    scores: float = 1.0
    attention: float = 1.0
    mixer: float = 1.0
    mlp: float = 1.0


_NO_MULTIPLIERS = Multipliers()


@dataclass(frozen=True, slots=True)
class LayerParts:
    """The parts of a layer; linear layers with the same input are listed together, or are one.

    With experts, gate_up and down have the matrices of all of them. A layer may lack either branch:
    few with a mixer attend.
    """

    qkv: list[Any]
    output: Any | None
    gate_up: list[Any]
    down: Any | None
    before_attention: NormPart | None
    before_mlp: NormPart | None
    after_attention: NormPart | None = None
    after_mlp: NormPart | None = None
    query: NormPart | None = None
    key: NormPart | None = None
    value: NormPart | None = None
    values_are_keys: bool = False  # but for norm and rotation; `qkv` then has them once
    kv_layer: int | None = None  # whose keys and values it attends to, having none in `qkv`
    layer_type: str = ""  # where the family has several
    experts: ExpertParts | None = None
    mixer: MixerParts | None = None
    latent: LatentParts | None = None
    dense: DenseParts | None = None
    inputs: InputBranch | None = None
    multipliers: Multipliers = _NO_MULTIPLIERS
    scale: Tensor | None = None  # [1], of the hidden states behind the layer

    @property
    def fused_linears(self) -> list[list[Any]]:
        shared = [] if self.experts is None else self.experts.shared_linears
        mixer = [] if self.mixer is None else [self.mixer.input, [self.mixer.output]]
        attention = [] if self.output is None else [self.qkv, [self.output]]
        attention += [] if self.latent is None else self.latent.fused_linears
        mlp = [] if self.down is None else [self.gate_up, [self.down]]
        dense = [] if self.dense is None else self.dense.fused_linears
        inputs = [] if self.inputs is None else self.inputs.fused_linears
        return [*mixer, *attention, *mlp, *shared, *dense, *inputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Layers, one behind the other, and how all of them compute. All norms have one epsilon."""

    layers: list[LayerParts]
    activation: Activation
    gated: bool  # of what goes into the activation the first half is, and multiplies the other
    norms_rows: bool = False  # those of queries and keys are over all heads, not over each
    norms_by_head: bool = False  # each head has weights of its own for them
    norms_rotated: bool = False  # they are behind the rotation
    norms_sums: bool = False  # norms behind a branch are of its sum with the hidden states
    rotates_neighbours: bool = False  # pairs of one angle are neighbours, not of two halves
    parallel: bool = False  # MLPs read what attention read, not what it made of that
    gates_attention: bool = False  # the linear layer of the queries has gates behind them
    angles: Angles | None = None
    gate_limit: float = 0.0  # of the clamped activation, and the slope of its sigmoid
    gate_slope: float = 0.0
    gate_scale: float = 1.0

    @property
    def attention(self) -> list[LayerParts]:
        """The layers that attend."""
        return [layer for layer in self.layers if layer.output is not None]

    @property
    def latents(self) -> LatentParts | None:
        """Of the first layer that attends; all have some, or none."""
        return self.attention[0].latent if self.attention else None

    @property
    def mixers(self) -> list[MixerParts]:
        return [layer.mixer for layer in self.layers if layer.mixer is not None]

    @property
    def epsilons(self) -> set[float]:
        """Of the norms of hidden states."""
        names = ("before_attention", "after_attention", "before_mlp", "after_mlp")
        norms = [getattr(layer, name) for layer in self.layers for name in names]
        return {norm.epsilon for norm in norms if norm is not None}

    @property
    def linears_inside(self) -> list[list[Any]]:
        """Those of the layers; those with the same input together."""
        return [linears for layer in self.layers for linears in layer.fused_linears]

    @property
    def fused_linears(self) -> list[list[Any]]:
        """All that it has, those with the same input together."""
        return self.linears_inside

    @property
    def linears(self) -> list[Any]:
        return [linear for linears in self.fused_linears for linear in linears]

    def is_plain(self, model: Any) -> bool:
        """Whether its linear layers, which are those of `model`, compute nothing more, in the
        model's dtype."""
        return (
            not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
            and all(type(linear) in PLAIN for linear in self.linears)
            and {parameter_of(linear).dtype for linear in self.linears} == {model.dtype}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts(Stack):
    """A whole model. The head's weights may be the embedding's."""

    embedding: Any
    head: Any
    last: NormPart
    positions: Any | None = None  # an embedding to be added
    query_scales: Callable[[int], Tensor] | None = None  # of the first so many positions, float32
    embedding_scale: float = 1.0
    logit_softcap: float = 0.0
    inputs: LayerInputs | None = None
    drafts: DraftParts | None = None
    replaced_ids: dict[int, int] = field(default_factory=dict)  # ids that are read as others

    @property
    def fused_linears(self) -> list[list[Any]]:
        """Those with the same input together."""
        inputs = [] if self.inputs is None else [[self.inputs.projection]]
        drafts = [] if self.drafts is None else [[self.drafts.projection]]
        head = [[self.head]] if self.drafts is None else []  # else the other model's
        return [*self.linears_inside, *inputs, *drafts, *head]


def find_parts(model: Any, layers: AttentionLayers) -> Parts | None:
    """The parts of `model`, whose attention is `layers`.

    None if its family is not among the common ones, or this one of it is unusual.
    """
    parts = _parts_of_family(model)
    return parts if parts is not None and _is_usual(model, parts, layers) else None


def draft_parts(
    model: Any, layers: AttentionLayers, projection: Any, embedding: nn.Module, hidden: nn.Module
) -> Parts | None:
    """The parts of a model that drafts for another one; None as of `find_parts`."""
    parts = find_parts(model, layers)
    if parts is None or len(parts.attention) != 1:
        return None
    return replace(parts, drafts=DraftParts(projection, norm_part(embedding), norm_part(hidden)))


def linears_of_layers(model: Any) -> list[Any]:
    """The linear layers inside the layers of `model`, which may have no numbers yet; none of a
    family that is not among the common ones."""
    parts = _parts_of_family(model)
    linears = [] if parts is None else parts.linears[:-1]  # the head is the last
    return [linear for linear in linears if type(linear) in PLAIN]


def head_of(model: Any) -> Any | None:
    """The linear layer that makes logits; None of a family that is not among the common ones."""
    parts = _parts_of_family(model)
    return None if parts is None or type(parts.head) not in PLAIN else parts.head


def _parts_of_family(model: Any) -> Parts | None:
    family = getattr(text_config(model), "model_type", None)
    if family in ("gpt2", "gpt_bigcode"):
        return _gpt2(model)
    if family == "gpt_neox":
        return _gpt_neox(model)
    if family == "mamba2":
        return _mamba2(model)
    if family in _LLAMA_LIKE and hasattr(_inner(model), "layers"):
        return _llama_like(model)
    return None


def _inner(model: Any) -> Any:
    """The model without its head; of a Gemma 4 that also sees the text part."""
    sees = model.config.model_type == "gemma4"
    return model.model.language_model if sees else model.model


def _is_usual(model: Any, parts: Parts, layers: AttentionLayers) -> bool:
    return (
        parts.is_plain(model)
        and parts.embedding.weight.dtype == model.dtype
        and (parts.inputs is None or parts.inputs.embedding.weight.dtype == model.dtype)
        and len(layers.shapes) == len(parts.attention)
        and len(layers.states) == len(parts.mixers)
    )


def find_stack(inner: Any) -> Stack | None:
    """The layers of a decoder's `inner` model, which has no head; None of a family that is not
    among the common ones."""
    config = text_config(inner)
    if config.model_type not in (*_LLAMA_LIKE, *_ENCODERS) or not hasattr(inner, "layers"):
        return None
    return _llama_stack(inner, config)


def _llama_stack(inner: Any, config: Any) -> Stack | None:
    activation = activation_name(config)
    # Norms of latents have an epsilon of their own.
    norms = [
        norm
        for name, norm in inner.named_modules()
        if _is_norm(norm) and not name.endswith("_a_layernorm")
    ]
    usual = all(map(_is_usual_layer, inner.layers))
    if not usual or activation not in ACTIVATIONS or len(set(map(epsilon_of, norms))) != 1:
        return None
    stack = Stack(
        layers=[_llama_layer(layer, config.model_type) for layer in inner.layers],
        activation=ACTIVATIONS[activation],
        gated=config.model_type not in _NOT_GATED,
        norms_rows=config.model_type in _NORMS_ROWS,
        norms_by_head=any(map(_norms_by_head, inner.layers)),
        norms_rotated=config.model_type in _NORMS_ROTATED,
        rotates_neighbours=config.model_type in _ROTATES_NEIGHBOURS
        or getattr(config, "rope_interleave", False),
        parallel=config.model_type in _PARALLEL or getattr(config, "use_parallel_residual", False),
        gates_attention=config.model_type in _GATES_ATTENTION
        or any(_gate_of(_attention_of(layer)) is not None for layer in inner.layers),
        angles=angles_of(
            getattr(inner, "rotary_emb", None) or getattr(inner, "pos_emb", None), config.model_type
        ),
    )
    if config.model_type == "gpt_oss":
        gates = {"gate_limit": config.swiglu_limit, "gate_slope": config.swiglu_alpha}
        return replace(stack, activation=Activation.CLAMPED, **gates)
    return stack


def _llama_like(model: Any) -> Parts | None:
    inner, config = _inner(model), text_config(model)
    stack = _llama_stack(inner, config)
    if stack is None:
        return None
    (embedding,) = children(inner, ("embed_tokens",), ("embeddings",))
    parts = Parts(
        **{each.name: getattr(stack, each.name) for each in fields(stack)},
        embedding=embedding,
        head=model.lm_head,
        last=norm_part(
            *children(inner, ("norm",), ("final_layernorm",), ("embedding_norm",), ("norm_f",))
        ),
        query_scales=_query_scales(config),
        embedding_scale=_embedding_scale(embedding),
        logit_softcap=_logit_softcap(config),
    )
    if config.model_type.startswith("cohere"):
        last = replace(parts.last, weight=parts.last.weight * config.logit_scale)
        return replace(parts, last=last)
    if config.model_type.startswith("granite"):
        parts = replace(parts, embedding_scale=config.embedding_multiplier)
        return _without_multipliers(parts, config.residual_multiplier, config.logits_scaling)
    if config.model_type == "falcon_h1":
        return _with_multipliers(parts, inner)
    if config.model_type == "gemma4_text":
        return _gemma4(model, parts)
    if config.model_type == "minicpm3":
        branch = config.scale_depth / math.sqrt(config.num_hidden_layers)
        return _without_multipliers(parts, branch, config.logits_scaling)
    return parts


def _embedding_scale(embedding: Any) -> float:
    """As it is rounded to the precision of the embedding."""
    scale = getattr(embedding, "scalar_embed_scale", 1.0)
    return float(torch.tensor(scale, dtype=embedding.weight.dtype))


def _gemma4(model: Any, parts: Parts) -> Parts:
    inner, config = _inner(model), model.config
    sources = source_layers(layer.self_attn for layer in inner.layers)
    parts = replace(
        parts,
        layers=[
            replace(_gemma4_layer(part, layer), kv_layer=source)
            for part, layer, source in zip(parts.layers, inner.layers, sources, strict=True)
        ],
    )
    if config.model_type == "gemma4":  # it reads the places of images and sounds as padding
        padding = config.text_config.pad_token_id
        names = ("image_token_id", "video_token_id", "audio_token_id")
        parts.replaced_ids.update({getattr(config, name): padding for name in names})
    if not inner.hidden_size_per_layer_input:
        return parts
    inputs = LayerInputs(
        embedding=inner.embed_tokens_per_layer,
        projection=inner.per_layer_model_projection,
        norm=norm_part(inner.per_layer_projection_norm),
        width=inner.hidden_size_per_layer_input,
        embedding_scale=_embedding_scale(inner.embed_tokens_per_layer),
        projection_scale=inner.per_layer_model_projection_scale,
        scale=inner.per_layer_input_scale,
    )
    return replace(parts, inputs=inputs)


def _gemma4_layer(part: LayerParts, layer: Any) -> LayerParts:
    """With what it has beside the parts of other families."""
    part = replace(part, scale=layer.layer_scalar)
    if layer.hidden_size_per_layer_input:
        branch = InputBranch(
            layer.per_layer_input_gate,
            layer.per_layer_projection,
            norm_part(layer.post_per_layer_input_norm),
        )
        part = replace(part, inputs=branch)
    if not layer.enable_moe_block:
        return part
    dense = DenseParts(
        part.gate_up,
        part.down,
        before=part.before_mlp,
        after=norm_part(layer.post_feedforward_layernorm_1),
        after_experts=norm_part(layer.post_feedforward_layernorm_2),
    )
    return replace(
        part,
        gate_up=[StackedLinear(layer.experts, "gate_up_proj")],
        down=StackedLinear(layer.experts, "down_proj"),
        before_mlp=norm_part(layer.pre_feedforward_layernorm_2),
        experts=find_gemma4_experts(layer),
        dense=dense,
    )


def _is_usual_layer(layer: Any) -> bool:
    """OLMo's first and OLMoE may cut queries, keys and values off."""
    attention = _attention_of(layer)
    if attention is None:
        return _kind_of(layer) in _MLP_ONLY or find_mixer(layer) is not None
    return getattr(getattr(attention, "config", None), "clip_qkv", None) is None


def _norms_by_head(layer: Any) -> bool:
    """Whether norms of queries have weights for each head, as StableLM's and Cohere's may."""
    norm = _norm_of(_attention_of(layer), "q_norm", "q_layernorm")
    return hasattr(norm, "norms") or (norm is not None and norm.weight.dim() > 1)


def activation_name(config: Any) -> str:
    names = ("hidden_activation", "mlp_hidden_act", "hidden_act", "activation")
    return next((name for name in (getattr(config, n, None) for n in names) if name), "silu")


def _kind_of(layer: Any) -> str:
    """Of a layer of Nemotron H, which is one of several branches."""
    return str(layer.block_type) if hasattr(layer, "mixer") else ""


_MLP_ONLY = ("mlp", "moe")


def _attention_of(layer: Any) -> Any | None:
    return layer.mixer if _kind_of(layer) == "full_attention" else getattr(layer, "self_attn", None)


def _mlp_of(layer: Any) -> Any | None:
    if hasattr(layer, "mixer"):
        return layer.mixer if _kind_of(layer) in _MLP_ONLY else None
    names = ("mlp", "block_sparse_moe", "feed_forward", "shared_mlp")
    found = (getattr(layer, name, None) for name in names)
    return next(module for module in found if module is not None)


def _without_multipliers(parts: Parts, branch: float, logits: float) -> Parts | None:
    """Granite and MiniCPM 3 multiply what each branch adds by r, and divide logits by s. Their
    hidden states, divided by r, are those of a plain decoder with another epsilon; s goes into the
    last norm."""
    if not (branch > 0 and logits > 0):
        return None
    epsilon = parts.last.epsilon / branch**2

    def plain(norm: NormPart | None) -> NormPart | None:
        return norm and replace(norm, epsilon=epsilon)

    layers = [
        replace(
            layer,
            before_attention=plain(layer.before_attention),
            before_mlp=plain(layer.before_mlp),
        )
        for layer in parts.layers
    ]
    last = replace(parts.last, weight=parts.last.weight / logits, epsilon=epsilon)
    scale = parts.embedding_scale / branch
    return replace(parts, layers=layers, last=last, embedding_scale=scale)


def _with_multipliers(parts: Parts, inner: Any) -> Parts | None:
    """Falcon H1's. Those of what a branch reads are factors of what it makes, if it has no bias."""
    config, (gates, mlp) = inner.config, inner.config.mlp_multipliers
    reads, mixer_reads = config.attention_in_multiplier, config.ssm_in_multiplier
    if (config.attention_bias and reads != 1) or (config.mamba_proj_bias and mixer_reads != 1):
        return None
    own = Multipliers(
        scores=reads**2 * config.key_multiplier,
        attention=reads * config.attention_out_multiplier,
        mixer=config.ssm_out_multiplier,
        mlp=mlp,
    )
    return replace(
        parts,
        layers=[replace(layer, multipliers=own) for layer in parts.layers],
        last=replace(parts.last, weight=parts.last.weight * config.lm_head_multiplier),
        embedding_scale=config.embedding_multiplier,
        gate_scale=gates,
    )


def _logit_softcap(config: Any) -> float:
    """Only Gemma's models read it; other configurations may have anything by this name."""
    is_read = config.model_type.startswith(("gemma", "vaultgemma"))
    return (getattr(config, "final_logit_softcapping", None) or 0.0) if is_read else 0.0


def _llama_layer(layer: Any, family: str) -> LayerParts:
    attention, mlp = _attention_of(layer), _mlp_of(layer)
    norms = _branch_norms(layer)
    gate_up, down = ([], None) if mlp is None else _mlp_linears(mlp, family)
    mixes = family == "falcon_h1" or (attention is None and _kind_of(layer) not in _MLP_ONLY)
    parts = LayerParts(
        qkv=[],
        output=None,
        gate_up=gate_up,
        down=down,
        before_attention=norm_part(norms.before_attention),
        before_mlp=norm_part(norms.before_mlp),
        after_attention=norm_part(norms.after_attention),
        after_mlp=norm_part(norms.after_mlp),
        experts=find_experts(layer, mlp, family) if hasattr(mlp, "experts") else None,
        mixer=find_mixer(layer) if mixes else None,
    )
    return parts if attention is None else _with_attention(parts, attention, family)


def _with_attention(parts: LayerParts, attention: Any, family: str) -> LayerParts:
    layer_type = getattr(attention, "layer_type", "") or getattr(attention, "attention_type", "")
    if not _is_rotated(attention, family):
        layer_type = _UNROTATED
    latent = value = None
    if has_latents(attention):
        qkv, latent = find_latents(attention)
    elif family == "gemma4_text":
        qkv, value = _gemma4_qkv(attention)
    else:
        qkv = children(attention, ("q_proj", "k_proj", "v_proj"), ("qkv_proj",))
    if family in _GATES_ATTENTION:
        size = attention.head_dim
        qkv[0] = GroupedLinear(qkv[0], qkv[0].out_features // (2 * size), (size, size))
    if (gate := _gate_of(attention)) is not None:
        qkv.insert(1, RepeatedLinear(gate, attention.head_dim))
    return replace(
        parts,
        qkv=qkv,
        output=children(attention, ("o_proj",), ("dense",), ("out_proj",))[0],
        query=norm_part(_norm_of(attention, "q_norm", "q_layernorm", "query_layernorm")),
        key=norm_part(_norm_of(attention, "k_norm", "k_layernorm", "key_layernorm")),
        value=value,
        values_are_keys=value is not None and attention.v_proj is None,
        layer_type=layer_type,
        latent=latent,
    )


def _gate_of(attention: Any) -> Any | None:
    """LFM 3's, of one output for each head."""
    return getattr(attention, "g_proj", None)


def _gemma4_qkv(attention: Any) -> tuple[list[Any], NormPart | None]:
    """The linear layers that a layer has, and the norm of its values, which has no weights."""
    if shares_keys(attention):
        return [attention.q_proj], None
    linears = [attention.q_proj, attention.k_proj, attention.v_proj]
    norm = NormPart(torch.ones(attention.head_dim), epsilon_of(attention.v_norm))
    return [linear for linear in linears if linear is not None], norm


def _norm_of(attention: Any, *spellings: str) -> Any | None:
    return next((getattr(attention, name) for name in spellings if hasattr(attention, name)), None)


class _BranchNorms(NamedTuple):
    before_attention: Any | None
    after_attention: Any | None
    before_mlp: Any | None
    after_mlp: Any | None


def _branch_norms(layer: Any) -> _BranchNorms:
    if hasattr(layer, "operator_norm"):  # LFM 2 and 3
        after = [getattr(layer, name, None) for name in ("post_operator_norm", "post_ffn_norm")]
        after_operator, after_mlp = (norm if _is_norm(norm) else None for norm in after)
        return _BranchNorms(layer.operator_norm, after_operator, layer.ffn_norm, after_mlp)
    if hasattr(layer, "mixer"):  # Nemotron H
        return _BranchNorms(layer.norm, None, layer.norm, None)
    if hasattr(layer, "pre_ff_layernorm"):  # Bamba
        return _BranchNorms(layer.input_layernorm, None, layer.pre_ff_layernorm, None)
    before = getattr(layer, "input_layernorm", None)
    behind = getattr(layer, "post_attention_layernorm", None)
    if hasattr(layer, "post_mlp_layernorm"):  # GLM 4
        return _BranchNorms(
            before, layer.post_self_attn_layernorm, behind, layer.post_mlp_layernorm
        )
    if hasattr(layer, "post_feedforward_layernorm"):  # "post_attention" is then meant so
        before_mlp = getattr(layer, "pre_feedforward_layernorm", None)
        return _BranchNorms(before, behind, before_mlp, layer.post_feedforward_layernorm)
    if behind is None:  # VaultGemma
        behind = getattr(layer, "pre_feedforward_layernorm", None)
    # Without another one, an MLP beside attention shares its norm.
    return _BranchNorms(before, None, before if behind is None else behind, None)


def _mlp_linears(mlp: Any, family: str) -> tuple[list[Any], Any]:
    if hasattr(mlp, "experts"):
        other_way = family == "gpt_oss"
        name = "up_proj" if family in _NOT_GATED else "gate_up_proj"
        gate_up = StackedLinear(mlp.experts, name, other_way, other_way)
        return [gate_up], StackedLinear(mlp.experts, "down_proj", other_way)
    return mlp_linears(mlp)


def _is_rotated(attention: Any, family: str) -> bool:
    """SmolLM 3 leaves some layers unrotated, EXAONE 4 those without a window beside others, Command
    R7B all without one."""
    if family == "cohere2":
        return attention.sliding_window is not None
    if family in ("exaone4", "exaone_moe"):
        return attention.sliding_window is None or bool(attention.is_sliding)
    return bool(getattr(attention, "use_rope", True))


def _is_norm(module: Any) -> bool:
    return type(module).__name__.endswith(("RMSNorm", "LayerNorm", "LayerNorm1P"))


#: The epsilon of OLMo's first norms, which stands in their code only.
_OLMO = 1e-5


@overload
def norm_part(norm: nn.Module) -> NormPart: ...
@overload
def norm_part(norm: None) -> None: ...
def norm_part(norm: Any) -> NormPart | None:
    if norm is None:
        return None
    if isinstance(norm, nn.LayerNorm):
        return _layer_norm(norm)
    if hasattr(norm, "norms"):  # StableLM's, one for each head
        weight = torch.cat([own.weight.detach().float() for own in norm.norms])
        return NormPart(weight, epsilon_of(norm.norms[0]), torch.zeros_like(weight))
    if hasattr(norm, "normalized_shape"):  # OLMo's first, without weights
        return NormPart(
            torch.ones(norm.normalized_shape), _OLMO, torch.zeros(norm.normalized_shape)
        )
    weight = norm.weight.detach().float().flatten()
    if type(norm).__name__.startswith("Cohere"):  # a layer norm without a bias
        return NormPart(weight.clone(), epsilon_of(norm), torch.zeros_like(weight))
    # Gemma, but not its fourth, and Qwen's hybrids store the difference from one.
    name = type(norm).__name__
    kinds = ("Gemma", "VaultGemma", "Qwen3Next", "Qwen3_5")
    from_one = name.startswith(kinds) and name != "Gemma4RMSNorm"
    return NormPart(weight + 1 if from_one else weight.clone(), epsilon_of(norm))


def epsilon_of(norm: Any) -> float:
    if type(norm).__name__ == "OlmoLayerNorm":
        return _OLMO
    return float(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)


def angles_of(rotary: Any | None, family: str) -> Angles | None:
    """What the model's own rotary embedding gives, each angle once."""
    if rotary is None:
        return None
    several = hasattr(rotary, "layer_types")

    def angles(layer_type: str, positions: int) -> tuple[Tensor, Tensor]:
        like, position_ids = torch.empty(0), torch.arange(positions)[None]
        arguments = (like, position_ids, layer_type) if several else (like, position_ids)
        turned = rotary(*arguments)
        if isinstance(turned, Tensor):  # DeepSeek V2's are complex numbers
            return turned.real[0].contiguous(), turned.imag[0].contiguous()
        cosines, sines = turned
        if layer_type == _UNROTATED:
            cosines, sines = torch.ones_like(cosines), torch.zeros_like(sines)
        half = cosines.shape[-1] // 2
        once = slice(half)  # the other half repeats them
        if family == "gpt_oss":
            once = slice(None)
        elif family.startswith("cohere"):  # the next one repeats each
            once = slice(0, None, 2)
        return cosines[0, :, once].contiguous(), sines[0, :, once].contiguous()

    return angles


def _query_scales(config: Any) -> Callable[[int], Tensor] | None:
    """Mistral's later models make queries longer with each so many positions."""
    if config.model_type not in ("ministral3", "mistral4"):
        return None
    beta = config.rope_parameters["llama_4_scaling_beta"]
    each = config.rope_parameters["original_max_position_embeddings"]
    return lambda count: 1 + beta * torch.log(1 + torch.floor(torch.arange(count) / each))


def _gpt2(model: Any) -> Parts | None:
    inner, config = model.transformer, model.config
    by_layer = getattr(config, "scale_attn_by_inverse_layer_idx", False)
    if config.activation_function not in ACTIVATIONS or by_layer:
        return None
    if not getattr(config, "multi_query", True):  # GPT BigCode then has them head by head
        return None
    return Parts(
        layers=[
            LayerParts(
                qkv=[block.attn.c_attn],
                output=block.attn.c_proj,
                gate_up=[block.mlp.c_fc],
                down=block.mlp.c_proj,
                before_attention=_layer_norm(block.ln_1),
                before_mlp=_layer_norm(block.ln_2),
            )
            for block in inner.h
        ],
        embedding=inner.wte,
        head=model.lm_head,
        last=_layer_norm(inner.ln_f),
        activation=ACTIVATIONS[config.activation_function],
        gated=False,
        positions=inner.wpe,
    )


def _gpt_neox(model: Any) -> Parts | None:
    inner, config = model.gpt_neox, model.config
    if config.hidden_act not in ACTIVATIONS:
        return None
    heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    return Parts(
        layers=[
            LayerParts(
                qkv=[GroupedLinear(layer.attention.query_key_value, heads, (size, size, size))],
                output=layer.attention.dense,
                gate_up=[layer.mlp.dense_h_to_4h],
                down=layer.mlp.dense_4h_to_h,
                before_attention=_layer_norm(layer.input_layernorm),
                before_mlp=_layer_norm(layer.post_attention_layernorm),
            )
            for layer in inner.layers
        ],
        embedding=inner.embed_in,
        head=model.lm_head,
        last=_layer_norm(inner.final_layer_norm),
        activation=ACTIVATIONS[config.hidden_act],
        gated=False,
        parallel=config.use_parallel_residual,
        angles=angles_of(inner.rotary_emb, "gpt_neox"),
    )


def _mamba2(model: Any) -> Parts | None:
    inner = model.backbone
    if any(find_mixer(layer) is None for layer in inner.layers):
        return None
    return Parts(
        layers=[
            LayerParts(
                qkv=[],
                output=None,
                gate_up=[],
                down=None,
                before_attention=norm_part(layer.norm),
                before_mlp=None,
                mixer=find_mixer(layer),
            )
            for layer in inner.layers
        ],
        embedding=inner.embeddings,
        head=model.lm_head,
        last=norm_part(inner.norm_f),
        activation=Activation.SILU,
        gated=False,
    )


def _layer_norm(norm: nn.LayerNorm) -> NormPart:
    weight = norm.weight.detach().float().clone()
    if type(norm).__name__.endswith("1P"):  # Nemotron stores the difference from one
        weight += 1
    bias = torch.zeros_like(weight) if norm.bias is None else norm.bias.detach().float().clone()
    return NormPart(weight, norm.eps, bias)
