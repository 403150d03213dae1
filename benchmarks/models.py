"""Models of real shapes with random weights: speed does not depend on what they say."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from roseinfer.demo_model import MODEL_PATH

BUILT_IN = "built-in"


def save_llama_135m(folder: Path) -> Path:
    """A Llama of 135M parameters in bfloat16, about 270 MB."""
    config = LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    return _save(config, folder)


def save_gpt2(folder: Path) -> Path:
    """GPT-2 small, 124M parameters in bfloat16."""
    return _save(GPT2Config(), folder)


def qwen3_600m(context: int) -> PreTrainedConfig:
    """The shape of Qwen3-0.6B."""
    return Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        max_position_embeddings=context,
        tie_word_embeddings=True,
    )


def save_qwen3_600m(folder: Path) -> Path:
    """In bfloat16, about 1.2 GB."""
    return _save(qwen3_600m(2048), folder)


_SAVERS = {"llama-135m": save_llama_135m, "gpt2": save_gpt2, "qwen3-0.6b": save_qwen3_600m}
NAMES = (BUILT_IN, *_SAVERS)


def model_folder(name: str, folder: Path) -> Path:
    """Where the model called `name` lies; one with random weights is saved in `folder`."""
    return MODEL_PATH if name == BUILT_IN else _SAVERS[name](folder / name)


def _save(config: PreTrainedConfig, folder: Path) -> Path:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return folder
