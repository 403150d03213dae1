"""What several families have in common: names of tensors, sizes, rotary embeddings, experts."""

from typing import Any

from torch import Tensor

from roseinfer.checkpoints.gguf.layouts import Draft, side_by_side

ATTENTION = {
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "attn_output": "o_proj",
}
MLP = {"ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj"}
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
SHARED = {f"{name}_shexp": parameter for name, parameter in MLP.items()}

# As files number them.
SOFTMAX, SIGMOID = 1, 2


def without_one(norm: Tensor) -> Tensor:
    return norm - 1


def sizes(draft: Draft) -> dict[str, Any]:
    """What every family has."""
    return {
        "max_position_embeddings": draft.value("context_length"),
        "hidden_size": draft.value("embedding_length"),
        "num_attention_heads": draft.value("attention.head_count"),
    }


def layer_count(draft: Draft) -> int:
    """Without those behind them that predict further tokens."""
    further = draft.get("nextn_predict_layers", 0)
    layers: int = draft.value("block_count") - further
    for layer in range(layers, layers + further):
        draft.leave_out(f"blk.{layer}.")
    return layers


def add_draft_layer(draft: Draft, layer: int, **norms: Any) -> None:
    """Of a layer for further tokens: what is beside a layer's own tensors, without copies of the
    model's embedding and head."""
    blk, parameters = f"blk.{layer}.nextn.", f"model.layers.{layer}."
    draft.rename(blk, parameters, {"eh_proj": "eh_proj"})
    names = {"enorm": "enorm", "hnorm": "hnorm", "shared_head_norm": "shared_head.norm"}
    draft.rename(blk, parameters, names, **norms)


def rope(draft: Draft, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": draft.value("rope.freq_base"), **more}


def is_stretched(draft: Draft) -> bool:
    """Whether contexts are, by YaRN."""
    scaling = draft.get("rope.scaling.type", "none")
    if scaling not in ("none", "yarn"):
        raise draft.refusal(f"its rope.scaling.type is {scaling!r}, and 'yarn' is read")
    return bool(scaling == "yarn")


def yarn(draft: Draft, **more: Any) -> dict[str, Any]:
    """Parameters of the rotation, with `more`, the two multipliers, which files do not have."""
    return rope(draft) | {
        "rope_type": "yarn",
        "factor": draft.value("rope.scaling.factor"),
        "original_max_position_embeddings": draft.value("rope.scaling.original_context_length"),
        "beta_fast": draft.get("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": draft.get("rope.scaling.yarn_beta_slow", 1.0),
        **more,
    }


def check_rotated(draft: Draft, head: int) -> None:
    if (rotated := draft.get("rope.dimension_count", head)) != head:
        raise draft.refusal(f"its rope.dimension_count is {rotated}, and all {head} are rotated")


def head_size(draft: Draft) -> int:
    """Of queries, keys and values, all of which is rotated."""
    width, heads = draft.value("embedding_length"), draft.value("attention.head_count")
    head: int = draft.get("attention.key_length", width // heads)
    check_rotated(draft, head)
    if (size := draft.get("attention.value_length", head)) != head:
        raise draft.refusal(f"its attention.value_length is {size}, and {head} is read")
    return head


def add_experts(draft: Draft, blk: str, mlp: str) -> None:
    names = [f"{blk}ffn_{name}_exps.weight" for name in ("gate", "up", "down")]
    draft.add(f"{mlp}experts.gate_up_proj", *names[:2], make=side_by_side)
    draft.add(f"{mlp}experts.down_proj", names[2])
