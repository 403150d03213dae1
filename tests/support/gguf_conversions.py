"""What llama.cpp's converter writes of families that this engine reads: keys and tensors."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Named = Iterator[tuple[str, Tensor]]

_NO_ROPE_CONTEXT = 2**20


@dataclass(frozen=True, slots=True)
class Conversion:
    """`tensors` has names of checkpoints, which the format's tables have too; a name of the format
    begins with its place there."""

    architecture: str
    keys: Callable[[Any], dict[str, Any]]
    tensors: Callable[[Any, str, Tensor], Named]
    extra: Callable[[Any], dict[str, list[float]]] = lambda config: {}
    """tensors that no parameter is in, by their names in the file"""


def _common(config: Any) -> dict[str, Any]:
    return {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
    }


def _attended(config: Any) -> dict[str, Any]:
    """Of one number of heads, of one size, in all layers."""
    return {
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": _head(config),
        "attention.value_length": _head(config),
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }


def _experts(name: str, weight: Tensor) -> Named:
    layer = name.split(".")[2]
    if name.endswith("gate_up_proj"):
        for kind, half in zip(("gate", "up"), weight.chunk(2, dim=1), strict=True):
            yield f"blk.{layer}.ffn_{kind}_exps.weight", half
    else:
        yield f"blk.{layer}.ffn_down_exps.weight", weight


def _qwen_keys(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters
    keys = (
        _common(config)
        | _attended(config)
        | {
            "rope.freq_base": rope["rope_theta"],
            "rope.dimension_count": int(config.head_dim * rope["partial_rotary_factor"]),
            "ssm.conv_kernel": config.linear_conv_kernel_dim,
            "ssm.state_size": config.linear_key_head_dim,
            "ssm.group_count": config.linear_num_key_heads,
            "ssm.time_step_rank": config.linear_num_value_heads,
            "ssm.inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
            "full_attention_interval": config.layer_types.index("full_attention") + 1,
        }
    )
    if config.model_type != "qwen3_next":
        keys["rope.dimension_sections"] = [11, 11, 10, 0]
    if config.model_type == "qwen3_5_text":
        return keys | {"feed_forward_length": config.intermediate_size}
    return keys | {
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
    }


def _tiled(tensor: Tensor, config: Any, dim: int, size: int, first: int = 0) -> Tensor:
    """The first head of values of each head of keys, then the second of each: behind `first`."""
    kept, heads = torch.split(tensor, [first, tensor.shape[dim] - first], dim)
    keys = config.linear_num_key_heads
    shape = (keys, config.linear_num_value_heads // keys, size)
    whole = heads.shape
    heads = heads.reshape(*whole[:dim], *shape, *whole[dim + 1 :]).transpose(dim, dim + 1)
    return torch.cat([kept, heads.reshape(whole)], dim)


def _qwen_tensors(config: Any, name: str, tensor: Tensor) -> Named:
    size = config.linear_value_head_dim
    behind = 2 * config.linear_num_key_heads * config.linear_key_head_dim
    if ".experts." in name:
        yield from _experts(name, tensor)
        return
    if "conv1d" in name:
        tensor = tensor.squeeze()
    if "linear_attn" in name and config.model_type != "qwen3_next":
        if "in_proj_qkv" in name or "conv1d" in name:
            tensor = _tiled(tensor, config, 0, size, behind)
        elif "in_proj_z" in name:
            tensor = _tiled(tensor, config, 0, size)
        elif "out_proj" in name:
            tensor = _tiled(tensor, config, 1, size)
        elif not name.endswith("norm.weight"):
            tensor = _tiled(tensor, config, 0, 1)
    if name.endswith("in_proj_qkvz.weight"):
        yield from _apart(config, name.split(".")[2], tensor)
    elif name.endswith("A_log"):
        yield name, -tensor.exp()
    elif name.endswith("dt_bias"):
        yield name.replace("dt_bias", "dt_proj.bias"), tensor
    elif name.endswith("norm.weight") and "linear_attn" not in name:
        yield name, tensor + 1
    else:
        yield name, tensor[0] if name.endswith("shared_expert_gate.weight") else tensor


def _apart(config: Any, layer: str, tensor: Tensor) -> Named:
    """Qwen 3 Next's checkpoints have the queries, keys, values and gates of a head together."""
    keys = config.linear_num_key_heads
    values = config.linear_num_value_heads // keys * config.linear_value_head_dim
    sizes = [config.linear_key_head_dim] * 2 + [values] * 2
    *qkv, gates = torch.split(tensor.reshape(keys, sum(sizes), -1), sizes, dim=1)
    yield f"blk.{layer}.attn_qkv.weight", torch.cat([part.flatten(0, 1) for part in qkv])
    yield f"blk.{layer}.attn_gate.weight", gates.flatten(0, 1)


def _lfm2_keys(config: Any) -> dict[str, Any]:
    attends = [kind == "full_attention" for kind in config.layer_types]
    keys = _common(config) | {
        "attention.head_count_kv": [config.num_key_value_heads * layer for layer in attends],
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "feed_forward_length": config.intermediate_size,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "vocab_size": config.vocab_size,
        "shortconv.l_cache": config.conv_L_cache,
    }
    if config.model_type == "lfm2":
        return keys
    return keys | {
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "leading_dense_block_count": config.num_dense_layers,
        "expert_gating_func": 2,
    }


def _lfm2_tensors(config: Any, name: str, tensor: Tensor) -> Named:
    if ".experts." in name:
        yield from _experts(name, tensor)
    elif "conv.conv" in name:
        yield name, tensor.squeeze(1)
    elif name.endswith("expert_bias"):
        yield f"{name}.bias", tensor
    else:
        yield name, tensor


def _mamba2_tensors(name: str, tensor: Tensor, groups: int) -> Named:
    if "conv1d" in name:
        tensor = tensor.squeeze()
    elif name.endswith("A_log"):
        tensor = -tensor.exp()[:, None]
    elif name.endswith(".D"):
        tensor = tensor[:, None]
    elif name.endswith((".mamba.norm.weight", ".mixer.norm.weight")):
        tensor = tensor.reshape(groups, -1)
    yield name.replace("dt_bias", "dt_proj.bias"), tensor


def _neighbours(rows: Tensor, heads: int) -> Tensor:
    """Pairs as llama.cpp's first rotary embedding has them."""
    return rows.reshape(heads, 2, -1, rows.shape[-1]).transpose(1, 2).reshape(rows.shape)


def _paired(config: Any, name: str, rows: Tensor) -> Tensor:
    """Of queries or keys."""
    of_queries = name.endswith("q_proj.weight")
    return _neighbours(
        rows, config.num_attention_heads if of_queries else config.num_key_value_heads
    )


def _mistral3_keys(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters
    keys = (
        _common(config)
        | _attended(config)
        | {
            "feed_forward_length": config.intermediate_size,
            "vocab_size": config.vocab_size,
            "rope.dimension_count": config.head_dim,
        }
    )
    if config.model_type == "mistral":
        return keys | {"rope.freq_base": rope["rope_theta"]}
    return keys | {
        **_yarn_keys(rope),
        "rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"],
        "attention.temperature_scale": rope["llama_4_scaling_beta"],
    }


def _mistral3_tensors(config: Any, name: str, tensor: Tensor) -> Named:
    is_paired = name.endswith(("q_proj.weight", "k_proj.weight"))
    yield name, _paired(config, name, tensor) if is_paired else tensor


def _hunyuan_keys(config: Any) -> dict[str, Any]:
    rope, head = config.rope_parameters, config.head_dim
    return (
        _common(config)
        | _attended(config)
        | {
            "feed_forward_length": config.intermediate_size,
            "rope.freq_base": rope["rope_theta"] * rope["alpha"] ** (head / (head - 2)),
            "rope.scaling.type": "none",
            "rope.scaling.factor": 1.0,
        }
    )


def _hunyuan_tensors(_config: Any, name: str, tensor: Tensor) -> Named:
    for kind in ("query", "key"):
        name = name.replace(f"{kind}_layernorm", f"{kind[0]}_norm")
    yield name, tensor


def _granite_keys(config: Any) -> dict[str, Any]:
    attends = [kind == "full_attention" for kind in config.layer_types]
    return _common(config) | {
        "context_length": _NO_ROPE_CONTEXT,
        "attention.head_count_kv": [config.num_key_value_heads * layer for layer in attends],
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.scale": config.attention_multiplier,
        "feed_forward_length": config.intermediate_size,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "rope.dimension_count": config.hidden_size // config.num_attention_heads,
        "rope.scaling.finetuned": False,
        "vocab_size": config.vocab_size,
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": config.logits_scaling,
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_feed_forward_length": config.shared_intermediate_size,
        "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.state_size": config.mamba_d_state,
        "ssm.group_count": config.mamba_n_groups,
        "ssm.inner_size": config.mamba_expand * config.hidden_size,
        "ssm.time_step_rank": config.mamba_n_heads,
    }


def _granite_tensors(config: Any, name: str, tensor: Tensor) -> Named:
    layer = f"blk.{name.split('.')[2]}." if ".layers." in name else ""
    ending = "_shexp" if config.num_local_experts else ""
    if ".experts." in name:
        yield from _experts(name, tensor)
    elif name.endswith("shared_mlp.input_linear.weight"):
        for kind, half in zip(("gate", "up"), tensor.chunk(2), strict=True):
            yield f"{layer}ffn_{kind}{ending}.weight", half
    elif name.endswith("shared_mlp.output_linear.weight"):
        yield f"{layer}ffn_down{ending}.weight", tensor
    elif name.endswith(("q_proj.weight", "k_proj.weight")):
        yield name, _paired(config, name, tensor)
    elif ".mamba." in name:
        yield from _mamba2_tensors(name, tensor, config.mamba_n_groups)
    else:
        yield name.replace("router.weight", "router.layer.weight"), tensor


def _falcon_keys(config: Any) -> dict[str, Any]:
    return (
        _common(config)
        | _attended(config)
        | {
            "feed_forward_length": config.intermediate_size,
            "rope.freq_base": config.rope_parameters["rope_theta"],
            "vocab_size": config.vocab_size,
            "ssm.conv_kernel": config.mamba_d_conv,
            "ssm.state_size": config.mamba_d_state,
            "ssm.group_count": config.mamba_n_groups,
            "ssm.inner_size": config.mamba_d_ssm,
            "ssm.time_step_rank": config.mamba_n_heads,
        }
    )


def _head(config: Any) -> int:
    size = getattr(config, "head_dim", None)
    return int(size or config.hidden_size // config.num_attention_heads)


def _falcon_tensors(config: Any, name: str, tensor: Tensor) -> Named:
    """Multiplied by the model's multipliers."""
    gate, down = config.mlp_multipliers
    before = config.attention_in_multiplier
    multipliers = {
        "down_proj": down,
        "gate_proj": gate,
        "k_proj": config.key_multiplier * before,
        "q_proj": before,
        "v_proj": before,
        "o_proj": config.attention_out_multiplier,
        "out_proj": config.ssm_out_multiplier,
        "lm_head": config.lm_head_multiplier,
        "embed_tokens": config.embedding_multiplier,
    }
    if "mamba.in_proj" in name:
        states = config.mamba_n_groups * config.mamba_d_state
        sizes = [config.mamba_d_ssm] * 2 + [states] * 2 + [config.mamba_n_heads]
        parts = torch.split(tensor * config.ssm_in_multiplier, sizes)
        pairs = zip(parts, config.ssm_multipliers, strict=True)
        tensor = torch.cat([part * multiplier for part, multiplier in pairs])
    else:
        part = name.split(".")[-2] if name.endswith("weight") else ""
        tensor = tensor * multipliers.get(part, 1.0)
    if ".mamba." in name:
        yield from _mamba2_tensors(name, tensor, config.mamba_n_groups)
    elif name.endswith("pre_ff_layernorm.weight"):
        yield f"blk.{name.split('.')[2]}.ffn_norm", tensor
    else:
        yield name, tensor


def _nemotron_keys(config: Any) -> dict[str, Any]:
    def where(kind: str, number: int) -> list[int]:
        return [number if own == kind else 0 for own in config.layers_block_type]

    keys = _common(config) | {
        "context_length": _NO_ROPE_CONTEXT,
        "attention.head_count_kv": where("full_attention", config.num_key_value_heads),
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        "attention.layer_norm_epsilon": config.layer_norm_epsilon,
        "rope.dimension_count": config.head_dim,
        "rope.scaling.finetuned": False,
        "vocab_size": config.vocab_size,
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.state_size": config.ssm_state_size,
        "ssm.group_count": config.n_groups,
        "ssm.inner_size": config.mamba_num_heads * config.mamba_head_dim,
        "ssm.time_step_rank": config.mamba_num_heads,
    }
    if "moe" not in config.layers_block_type:
        return keys | {"feed_forward_length": where("mlp", config.intermediate_size)}
    return keys | {
        "feed_forward_length": where("moe", config.moe_intermediate_size),
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.moe_shared_expert_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_norm": config.norm_topk_prob,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
    }


def _nemotron_tensors(config: Any, name: str, tensor: Tensor) -> Named:
    name = name.replace("model.", "backbone.", 1)
    blk = f"blk.{name.split('.')[2]}." if ".layers." in name else ""
    if name.endswith("mixer.experts.up_proj"):
        yield f"{blk}ffn_up_exps.weight", tensor
    elif name.endswith("mixer.experts.down_proj"):
        yield f"{blk}ffn_down_exps.weight", tensor
    elif name.endswith("e_score_correction_bias"):
        yield f"{blk}exp_probs_b.bias", tensor
    elif name.endswith(("q_proj.weight", "k_proj.weight")):
        yield name, _paired(config, name, tensor)
    else:
        yield from _mamba2_tensors(name, tensor, config.n_groups)


def _mamba2_keys(config: Any) -> dict[str, Any]:
    return {
        "context_length": _NO_ROPE_CONTEXT,
        "embedding_length": config.hidden_size,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": config.num_hidden_layers,
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.state_size": config.state_size,
        "ssm.group_count": config.n_groups,
        "ssm.inner_size": config.num_heads * config.head_dim,
        "ssm.time_step_rank": config.num_heads,
    }


def _latent_keys(config: Any) -> dict[str, Any]:
    rank, rotated = config.kv_lora_rank, config.qk_rope_head_dim
    experts = getattr(config, "n_routed_experts", None)
    layers = config.num_hidden_layers
    keys = _common(config) | {
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": config.qk_nope_head_dim + rotated,
        "attention.value_length_mla": config.v_head_dim,
        "feed_forward_length": config.intermediate_size,
        **_yarn_keys(config.rope_parameters),
        "rope.dimension_count": rotated,
        "vocab_size": config.vocab_size,
        "leading_dense_block_count": _dense_layers(config) if experts else layers,
        "expert_feed_forward_length": getattr(
            config, "moe_intermediate_size", config.intermediate_size
        ),
        "expert_shared_count": getattr(config, "n_shared_experts", 0),
    }
    if config.q_lora_rank:
        keys["attention.q_lora_rank"] = config.q_lora_rank
    if not experts:
        return keys
    keys |= {
        "expert_count": experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
        "expert_weights_scale": float(config.routed_scaling_factor),
    }
    if config.norm_topk_prob:
        keys["expert_weights_norm"] = True
    if config.model_type != "deepseek_v2":
        keys["expert_gating_func"] = 2
    return keys


def _dense_layers(config: Any) -> int:
    """Before those with experts."""
    types: list[str] | None = getattr(config, "mlp_layer_types", None)
    return config.first_k_dense_replace if types is None else types.count("dense")


def _yarn_keys(rope: dict[str, Any]) -> dict[str, Any]:
    keys = {"rope.freq_base": rope["rope_theta"]}
    if rope["rope_type"] != "yarn":
        return keys
    names = {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}
    return keys | {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "rope.scaling.yarn_log_multiplier": 0.1 * rope["mscale_all_dim"],
        **{f"rope.scaling.{name}": rope[own] for own, name in names.items() if own in rope},
    }


def _latent_tensors(config: Any, name: str, tensor: Tensor) -> Named:
    if ".mlp.experts." in name:
        yield from _experts(name, tensor)
    elif name.endswith("e_score_correction_bias"):
        yield f"blk.{name.split('.')[2]}.exp_probs_b.bias", tensor
    elif name.endswith("kv_b_proj.weight"):
        sizes = [config.qk_nope_head_dim, config.v_head_dim]
        heads = tensor.reshape(config.num_attention_heads, sum(sizes), -1)
        keys, values = torch.split(heads, sizes, dim=1)
        yield name.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2)
        yield name.replace("kv_b_proj", "v_b_proj"), values
    else:
        yield name, tensor


def _minicpm3_keys(config: Any) -> dict[str, Any]:
    """Neither its multipliers nor anything of its rotary embedding but what it rotates."""
    return _common(config) | {
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.key_length": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "feed_forward_length": config.intermediate_size,
        "rope.dimension_count": config.qk_rope_head_dim,
        "vocab_size": config.vocab_size,
    }


def _minicpm3_extra(config: Any) -> dict[str, list[float]]:
    rope = config.rope_parameters
    if rope["rope_type"] != "longrope":
        return {}
    return {f"rope_factors_{kind}.weight": rope[f"{kind}_factor"] for kind in ("long", "short")}


def _gemma4_keys(config: Any) -> dict[str, Any]:
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    own = [config.per_layer_config[layer] for layer in range(config.num_hidden_layers)]
    heads = [layer.num_key_value_heads for layer in own]
    size, sliding_size = own[slides.index(False)].head_dim, own[slides.index(True)].head_dim
    shared = config.num_kv_shared_layers
    rope, width = config.rope_parameters, config.intermediate_size
    keys = _common(config) | {
        "attention.head_count_kv": heads if config.attention_k_eq_v else heads[0],
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.key_length_swa": sliding_size,
        "attention.value_length_swa": sliding_size,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": slides,
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "feed_forward_length": width,
        "rope.freq_base": rope["full_attention"]["rope_theta"],
        "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"],
        "rope.dimension_count": size,
        "rope.dimension_count_swa": sliding_size,
    }
    if config.use_double_wide_mlp:
        doubled = [width] * (config.num_hidden_layers - shared) + [2 * width] * shared
        keys["feed_forward_length"] = doubled
    if config.final_logit_softcapping:
        keys["final_logit_softcapping"] = config.final_logit_softcapping
    if not config.enable_moe_block:
        return keys
    return keys | {
        "expert_count": config.num_experts,
        "expert_used_count": config.top_k_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
    }


def _gemma4_tensors(config: Any, name: str, tensor: Tensor) -> Named:
    blk = f"blk.{name.split('.')[2]}." if ".layers." in name else ""
    if name.endswith("router.scale"):
        yield f"{blk}ffn_gate_inp.scale", tensor
    elif name.endswith("per_expert_scale"):
        yield f"{blk}ffn_down_exps.scale", tensor
    elif name.endswith("layer_scalar") or ".experts." in name:
        yield f"{name}.weight", tensor
    else:
        yield name, tensor


def _gemma4_extra(config: Any) -> dict[str, list[float]]:
    size = _gemma4_keys(config)["attention.key_length"]
    rotated = int(size * config.rope_parameters["full_attention"]["partial_rotary_factor"] / 2)
    return {"rope_freqs.weight": [1.0] * rotated + [1e30] * (size // 2 - rotated)}


#: By transformers' name of the family.
CONVERSIONS = {
    "qwen3_next": Conversion("qwen3next", _qwen_keys, _qwen_tensors),
    "qwen3_5_text": Conversion("qwen35", _qwen_keys, _qwen_tensors),
    "qwen3_5_moe_text": Conversion("qwen35moe", _qwen_keys, _qwen_tensors),
    "lfm2": Conversion("lfm2", _lfm2_keys, _lfm2_tensors),
    "lfm2_moe": Conversion("lfm2moe", _lfm2_keys, _lfm2_tensors),
    "granitemoehybrid": Conversion("granitehybrid", _granite_keys, _granite_tensors),
    "falcon_h1": Conversion("falcon-h1", _falcon_keys, _falcon_tensors),
    "nemotron_h": Conversion("nemotron_h", _nemotron_keys, _nemotron_tensors),
    "mamba2": Conversion(
        "mamba2",
        _mamba2_keys,
        lambda config, name, tensor: _mamba2_tensors(name, tensor, config.n_groups),
    ),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu"),
        Conversion("deepseek2", _latent_keys, _latent_tensors),
    ),
    "minicpm3": Conversion(
        "minicpm3",
        _minicpm3_keys,
        lambda config, name, tensor: iter([(name, tensor)]),
        _minicpm3_extra,
    ),
    **dict.fromkeys(
        ("mistral", "ministral3"), Conversion("mistral3", _mistral3_keys, _mistral3_tensors)
    ),
    "hunyuan_v1_dense": Conversion("hunyuan-dense", _hunyuan_keys, _hunyuan_tensors),
    "gemma4_text": Conversion("gemma4", _gemma4_keys, _gemma4_tensors, _gemma4_extra),
}
