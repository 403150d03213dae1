"""Random weights of real shapes, made on the device: 8 billion of them in seconds."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen3Config

from benchmarks.models import qwen3_600m

_TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 2048,
    "max_position_embeddings": 512,
}


def llama_8b() -> PreTrainedConfig:
    """The shape of Llama-3.1-8B."""
    return LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )


CONFIGS = {"qwen3-0.6b": lambda: qwen3_600m(40960), "llama-8b": llama_8b}
TINY = {
    "qwen3-0.6b": lambda: Qwen3Config(**_TINY, tie_word_embeddings=True),
    "llama-8b": lambda: LlamaConfig(**_TINY),
}


def make(config: PreTrainedConfig, device: torch.device, dtype: torch.dtype) -> Any:
    """The same weights every time."""
    torch.manual_seed(0)
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
