"""The layout of Gemma 4: layers of two kinds, each with heads and a rotary embedding of its own."""

import math

from transformers import Gemma4TextConfig

from roseinfer.checkpoints.gguf.layouts import Draft, Layout
from roseinfer.checkpoints.gguf.parts import ATTENTION, MLP, add_experts, sizes

_BRANCHES = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    # Beside experts.
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    # Of the embeddings for each layer.
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
_OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
_KEYS_AND_VALUES = {"attn_k": "k_proj", "attn_v": "v_proj", "attn_k_norm": "k_norm"}

# What a frequency is divided by that rotates nothing.
_UNROTATED = 1e30


def gemma4(draft: Draft) -> Layout:
    layers = draft.value("block_count")
    first_shared = layers - draft.get("attention.shared_kv_layers", 0)
    slides = draft.each("attention.sliding_window_pattern", layers)
    if not all(isinstance(one, bool) for one in slides) or slides[-1]:
        name = "attention.sliding_window_pattern"
        raise draft.refusal(f"its {name} is not one of each layer with a last one that sees all")
    for layer in range(layers):
        _add_layer(draft, f"blk.{layer}.", f"model.layers.{layer}.", layer >= first_shared)
    draft.rename("", "", _OUTSIDE)
    heads = draft.each("attention.head_count_kv", layers)
    sliding, full = (_one(draft, heads, slides, kind) for kind in (True, False))
    if (scale := draft.get("attention.scale", 1.0)) != 1:
        raise draft.refusal(f"its attention.scale is {scale:g}, and 1 is read")
    head, sliding_head = _head_size(draft, ""), _head_size(draft, "_swa")
    width, is_doubled = _widths(draft, layers, first_shared)
    experts = draft.get("expert_count", 0)
    values = (
        draft.has(f"blk.{layer}.attn_v.weight")
        for layer in range(first_shared)
        if not slides[layer]
    )
    settings = sizes(draft) | {
        "num_hidden_layers": layers,
        "num_key_value_heads": full if sliding is None else sliding,
        "num_global_key_value_heads": full,
        "head_dim": sliding_head,
        "global_head_dim": head,
        "intermediate_size": width,
        "use_double_wide_mlp": is_doubled,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": draft.has_any("attn_q.bias"),
        "attention_k_eq_v": not all(values),
        "rms_norm_eps": draft.value("attention.layer_norm_rms_epsilon"),
        "sliding_window": draft.value("attention.sliding_window"),
        "layer_types": ["sliding_attention" if one else "full_attention" for one in slides],
        "num_kv_shared_layers": layers - first_shared,
        "final_logit_softcapping": draft.get("final_logit_softcapping") or None,
        "hidden_size_per_layer_input": draft.get("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": draft.vocabulary,
        "enable_moe_block": bool(experts),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": draft.value("rope.freq_base"),
                "partial_rotary_factor": _rotated(draft, head),
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": draft.value("rope.freq_base_swa"),
            },
        },
    }
    if experts:
        settings |= {
            "num_experts": experts,
            "top_k_experts": draft.value("expert_used_count"),
            "moe_intermediate_size": draft.value("expert_feed_forward_length"),
        }
    return draft.finish(Gemma4TextConfig, **settings)


def _add_layer(draft: Draft, blk: str, parameters: str, is_shared: bool) -> None:
    draft.rename(blk, parameters, _BRANCHES)
    draft.add(f"{parameters}layer_scalar", f"{blk}layer_output_scale.weight")
    attention = {name: ATTENTION[name] for name in ("attn_q", "attn_output")}
    draft.rename(blk, f"{parameters}self_attn.", attention | {"attn_q_norm": "q_norm"})
    if is_shared:  # checkpoints have what computes them all the same
        for name in _KEYS_AND_VALUES:
            draft.leave_out(f"{blk}{name}.")
    else:
        draft.rename(blk, f"{parameters}self_attn.", _KEYS_AND_VALUES)
    draft.rename(blk, f"{parameters}mlp.", MLP)
    draft.rename(blk, f"{parameters}router.", {"ffn_gate_inp": "proj"})
    draft.add(f"{parameters}router.scale", f"{blk}ffn_gate_inp.scale")
    draft.add(f"{parameters}router.per_expert_scale", f"{blk}ffn_down_exps.scale")
    add_experts(draft, blk, parameters)
    draft.add(f"{parameters}experts.gate_up_proj", f"{blk}ffn_gate_up_exps.weight")


def _one(draft: Draft, heads: list[int], slides: list[bool], kind: bool) -> int | None:
    """The number of heads that layers of a kind have; None if there are none of it."""
    counts = {count for count, own in zip(heads, slides, strict=True) if own is kind}
    if len(counts) > 1:
        raise draft.refusal("its attention.head_count_kv differs among layers of one kind")
    return counts.pop() if counts else None


def _head_size(draft: Draft, ending: str) -> int:
    size: int = draft.value(f"attention.key_length{ending}")
    for name in (f"attention.value_length{ending}", f"rope.dimension_count{ending}"):
        if (other := draft.get(name, size)) != size:
            raise draft.refusal(f"its {name} is {other}, and {size} is read")
    return size


def _widths(draft: Draft, layers: int, first_shared: int) -> tuple[int, bool]:
    """Of the MLPs, and whether those of layers with shared keys have it twice."""
    widths = draft.each("feed_forward_length", layers)
    width = widths[0]
    for is_doubled in (False, True):
        last = [width * (1 + is_doubled)] * (layers - first_shared)
        if widths == [width] * first_shared + last:
            return width, is_doubled
    raise draft.refusal(f"its feed_forward_length is {widths}, and one of all layers is read")


def _rotated(draft: Draft, head: int) -> float:
    """The share of pairs of dimensions that full attention rotates: the first ones."""
    factors = draft.factors("rope_freqs.weight")
    if factors is None:
        raise draft.refusal("it has no rope_freqs.weight, which says what is rotated")
    rotated = factors.count(1.0)
    rest = factors[rotated:]
    if len(factors) != head // 2 or not all(
        math.isclose(one, _UNROTATED, rel_tol=1e-6) for one in rest
    ):
        raise draft.refusal(
            "its rope_freqs.weight has others than 1 for what is rotated and 1e30 for the rest"
        )
    return math.nextafter(rotated / len(factors), 1.0)  # transformers rounds their number down
