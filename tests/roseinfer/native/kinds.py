"""Small models of each kind of layer, of sizes that the compiled decoder's kernels are made for."""

from typing import Any

import torch

from tests.roseinfer.models import build

SLIDING, FULL = "sliding_attention", "full_attention"

# Matrices of whole quantized groups, and heads that attend in pairs.
_GEMMA4 = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "head_dim": 32,
    "global_head_dim": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
}
# The same, keys and values that AMX multiplies, and more heads than are attended for at once.
_LATENTS = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 96,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "initializer_range": 0.1,
}
# The same. Values of a head are whole vectors, and some more or less.
_STATES = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 80,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "mamba_n_heads": 4,
    "mamba_d_head": 64,
    "mamba_d_state": 24,
    "mamba_num_heads": 4,
    "mamba_head_dim": 80,
    "ssm_state_size": 24,
    "shared_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 64,
    "initializer_range": 0.1,
}
# Each of another number, as Falcon H1's are.
_MULTIPLIERS = {
    "attention_in_multiplier": 0.7,
    "attention_out_multiplier": 1.3,
    "ssm_in_multiplier": 0.6,
    "ssm_out_multiplier": 1.2,
    "key_multiplier": 0.8,
    "mlp_multipliers": [0.9, 1.4],
    "ssm_multipliers": [0.5, 0.7, 1.1, 1.3, 0.9],
    "lm_head_multiplier": 0.4,
    "embedding_multiplier": 3.0,
}
# Experts with one row, with a few, and with enough for tiles.
_EXPERTS = {
    "hidden_size": 128,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 64,
    "intermediate_size": 128,
    "shared_expert_intermediate_size": 192,
    "initializer_range": 0.1,
}

SIZES: dict[str, dict[str, Any]] = {
    "gemma4": {
        **_GEMMA4,
        "layer_types": [SLIDING, FULL, SLIDING, FULL],
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 64,
        "tie_word_embeddings": True,
        "final_logit_softcapping": 30.0,
    },
    "gemma4_moe": {**_GEMMA4, "moe_intermediate_size": 64, "num_experts": 8},
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu", "mistral4"), _LATENTS
    ),
    **dict.fromkeys(("qwen3_next", "qwen3_5", "olmo_hybrid", "lfm2", "lfm2_moe"), _STATES),
    **dict.fromkeys(("granitemoehybrid", "bamba", "nemotron_h"), _STATES),
    "falcon_h1": {**_STATES, **_MULTIPLIERS, "mamba_d_ssm": 256},
    "mamba2": {**_STATES, "num_heads": 4, "head_dim": 64, "state_size": 24},
    **dict.fromkeys(("qwen2_moe", "qwen3_moe"), _EXPERTS),
    # heads that attend in pairs
    "gpt_oss": {**_EXPERTS, "head_dim": 32, "intermediate_size": 64},
}


def wide(architecture: str, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Any:
    """Weights are bfloat16's, whatever `dtype` is; norms and biases are neither ones nor zeros."""
    model = build(architecture, **{**SIZES.get(architecture, {}), **changes})
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 or name.endswith("bias"):
            generator = torch.Generator().manual_seed(3)
            torch.nn.init.normal_(parameter, 0.5, 0.2, generator=generator)
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):  # of Gemma 4's layers, each another one
            buffer.fill_(1.0 - 0.125 * int(name.split(".")[-2]))
    model = model.to(torch.bfloat16).to(dtype)
    for module in model.modules():
        if hasattr(module, "embed_scale"):  # as transformers has it after loading
            module.embed_scale = torch.tensor(module.scalar_embed_scale)
    return model
