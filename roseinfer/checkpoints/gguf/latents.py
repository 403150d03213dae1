"""The layouts of families with latents: DeepSeek V2 and V3, GLM 4.7 Flash, Youtu, MiniCPM 3."""

from typing import Any

import torch
from torch import Tensor
from transformers import DeepseekV2Config, DeepseekV3Config, MiniCPM3Config

from roseinfer.checkpoints.gguf.layouts import Draft, Layout
from roseinfer.checkpoints.gguf.parts import (
    MLP,
    NORMS,
    OUTSIDE,
    SHARED,
    SIGMOID,
    SOFTMAX,
    add_experts,
    is_stretched,
    layer_count,
    rope,
    sizes,
    yarn,
)

_LATENTS = {
    "attn_q": "q_proj",
    "attn_q_a": "q_a_proj",
    "attn_q_a_norm": "q_a_layernorm",
    "attn_q_b": "q_b_proj",
    "attn_kv_a_mqa": "kv_a_proj_with_mqa",
    "attn_kv_a_norm": "kv_a_layernorm",
    "attn_kv_b": "kv_b_proj",
    "attn_output": "o_proj",
}

# llama.cpp has them of MiniCPM 3's one size, and files do not say them.
_MINICPM3 = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}


def _keys_and_values(keys: Tensor, values: Tensor) -> Tensor:
    """Keys of each head are stored the other way round, to be multiplied into the queries."""
    return torch.cat([keys.transpose(1, 2), values], dim=1).flatten(0, 1)


def deepseek2(draft: Draft) -> Layout:
    layers = layer_count(draft)
    rotated = draft.value("rope.dimension_count")
    keys, values = draft.value("attention.key_length"), draft.value("attention.value_length")
    head, value_size = (
        draft.get("attention.key_length_mla", keys),
        draft.get("attention.value_length_mla", values),
    )
    draft.get("attention.head_count_kv")  # of latents there is one
    experts = draft.get("expert_count", 0)
    is_sigmoid = has_sigmoid_routes(draft, layers) or not experts
    for layer in range(layers):
        blk, parameters = f"blk.{layer}.", f"model.layers.{layer}."
        draft.rename(blk, parameters, NORMS)
        draft.rename(blk, f"{parameters}self_attn.", _LATENTS)
        draft.add(
            f"{parameters}self_attn.kv_b_proj.weight",
            f"{blk}attn_k_b.weight",
            f"{blk}attn_v_b.weight",
            make=_keys_and_values,
            moves_rows=False,
        )
        mlp = f"{parameters}mlp."
        draft.rename(blk, mlp, MLP | {"ffn_gate_inp": "gate"})
        draft.rename(blk, f"{mlp}shared_experts.", SHARED)
        if is_sigmoid:
            draft.add(f"{mlp}gate.e_score_correction_bias", f"{blk}exp_probs_b.bias")
        add_experts(draft, blk, mlp)
    draft.rename("", "", OUTSIDE)
    dense = draft.value("leading_dense_block_count")
    norms_weights = draft.get("expert_weights_norm", False)
    groups, used_groups = (
        draft.get("expert_group_count", 1),
        draft.get("expert_group_used_count", 1),
    )
    settings = sizes(draft) | {
        "num_hidden_layers": layers,
        "num_key_value_heads": draft.value("attention.head_count"),
        "hidden_act": "silu",
        "attention_bias": draft.has_any("attn_q_a.bias"),
        "rms_norm_eps": draft.value("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(draft),
        "q_lora_rank": draft.get("attention.q_lora_rank"),
        "kv_lora_rank": draft.value("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": head - rotated,
        "v_head_dim": value_size,
        "intermediate_size": draft.value("feed_forward_length"),
        "moe_intermediate_size": draft.value("expert_feed_forward_length"),
        "n_shared_experts": draft.get("expert_shared_count", 0),
        "first_k_dense_replace": dense,
        "routed_scaling_factor": draft.get("expert_weights_scale", 1.0),
        "norm_topk_prob": norms_weights,
    }
    if experts:
        settings["n_routed_experts"] = experts
        settings["num_experts_per_tok"] = draft.value("expert_used_count")
    if is_sigmoid:
        return draft.finish(
            DeepseekV3Config,
            rope_interleave=True,
            n_group=groups,
            topk_group=used_groups,
            **settings,
        )
    if groups > 1 or norms_weights:
        raise draft.refusal(
            "it chooses groups of experts, or norms their weights, after a softmax, which is not "
            "known here"
        )
    return draft.finish(DeepseekV2Config, topk_method="greedy", mlp_bias=False, **settings)


def has_sigmoid_routes(draft: Draft, layers: int) -> bool:
    """Files of GLM 4.7 Flash do not say so: llama.cpp knows them by their sizes."""
    is_flash = layers in (47, 48) and draft.vocabulary == 154_880
    gating = draft.get("expert_gating_func", SIGMOID if is_flash else SOFTMAX)
    if gating not in (SOFTMAX, SIGMOID):
        raise draft.refusal(f"its expert_gating_func is {gating}, which is not known here")
    return bool(gating == SIGMOID)


def _rope(draft: Draft) -> dict[str, Any]:
    """Plain, or YaRN's. The file has one of its two multipliers, and llama.cpp takes the other to
    be the same: rotations keep their length, and the scores of attention are scaled."""
    if not is_stretched(draft):
        return rope(draft)
    name = "rope.scaling.yarn_log_multiplier"
    if (multiplier := round(10 * draft.value(name), 6)) <= 0:  # a tenth of the model's is written
        raise draft.refusal(f"its {name} is {draft.get(name):g}, and one above 0 is read")
    return yarn(draft, mscale=multiplier, mscale_all_dim=multiplier)


def minicpm3(draft: Draft) -> Layout:
    layers, heads = draft.value("block_count"), draft.value("attention.head_count")
    rotated = draft.value("rope.dimension_count")
    for layer in range(layers):
        blk, parameters = f"blk.{layer}.", f"model.layers.{layer}."
        draft.rename(blk, parameters, NORMS)
        draft.rename(blk, f"{parameters}self_attn.", _LATENTS)
        draft.rename(blk, f"{parameters}mlp.", MLP)
    draft.rename("", "", OUTSIDE)
    value_size = draft.value("embedding_length") // heads
    return draft.finish(
        MiniCPM3Config,
        num_hidden_layers=layers,
        num_key_value_heads=draft.value("attention.head_count_kv"),
        hidden_act="silu",
        attention_bias=draft.has_any("attn_q_a.bias"),
        mlp_bias=draft.has_any("ffn_up.bias"),
        rms_norm_eps=draft.value("attention.layer_norm_rms_epsilon"),
        rope_parameters=_two_factors(draft),
        q_lora_rank=draft.value("attention.q_lora_rank"),
        kv_lora_rank=draft.value("attention.kv_lora_rank"),
        qk_rope_head_dim=rotated,
        qk_nope_head_dim=draft.value("attention.key_length") - rotated,
        v_head_dim=draft.get("attention.value_length", value_size),
        intermediate_size=draft.value("feed_forward_length"),
        **_MINICPM3,
        **sizes(draft),
    )


def _two_factors(draft: Draft) -> dict[str, Any]:
    """Factors of frequencies, for short contexts and for long ones. The file does not say where a
    long context begins: behind its own, as llama.cpp has it."""
    plain = {"rope_type": "default", "rope_theta": draft.get("rope.freq_base", 10_000.0)}
    context = draft.value("context_length")
    name = "rope.scaling.original_context_length"
    if (original := draft.get(name, context)) != context:
        raise draft.refusal(f"its {name} is {original}, and its context of {context} is read")
    short, long = (draft.factors(f"rope_factors_{kind}.weight") for kind in ("short", "long"))
    if short is None or long is None:
        return plain
    return plain | {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": context,
    }
