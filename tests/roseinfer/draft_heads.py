"""Checkpoints with a layer for further tokens, of random numbers."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.roseinfer.models import build, byte_tokenizer

#: The families, and how each stores the layer.
QWEN = ("qwen3_5", "qwen3_next", "qwen3_5_moe")
DEEPSEEK = ("deepseek_v3", "glm4_moe", "glm4_moe_lite")
FAMILIES = (*QWEN, *DEEPSEEK)
_NAMES = {
    "projection": ("fc", "eh_proj"),
    "embedding": ("pre_fc_norm_embedding", "enorm"),
    "hidden": ("pre_fc_norm_hidden", "hnorm"),
    "norm": ("norm", "shared_head.norm"),
}


def save_with_head(
    folder: Path, architecture: str, *, sees_last_token_only: bool = False, **changes: Any
) -> None:
    """A checkpoint, with tokenizer.

    With `sees_last_token_only` all that layers add is next to nothing: a token follows from the one
    before it alone, and what the head drafts is nearly always right.
    """
    if architecture in DEEPSEEK:
        changes["num_nextn_predict_layers"] = 1
    model = build(architecture, **changes)
    if sees_last_token_only:
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj", "down_proj.weight")):
                parameter.data *= 1e-4
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors |= _head(tensors, model, qwen=architecture in QWEN, copies=sees_last_token_only)
    save_file(tensors, path, metadata={"format": "pt"})


def _head(tensors: dict[str, Tensor], model: Any, *, qwen: bool, copies: bool) -> dict[str, Tensor]:
    config = model.config
    source = max(n for n in range(config.num_hidden_layers) if _is_alike(tensors, n))
    own = "mtp.layers.0" if qwen else f"model.layers.{config.num_hidden_layers}"
    generator = torch.Generator().manual_seed(7)
    head = {}
    for name, tensor in tensors.items():
        prefix = f"model.layers.{source}."
        if name.startswith(prefix):
            noise = torch.randn(tensor.shape, generator=generator) * tensor.std()
            drawn = tensor if copies or tensor.dim() < 2 else noise
            head[f"{own}.{name.removeprefix(prefix)}"] = drawn.clone()
    size = config.hidden_size
    projection = torch.randn(size, 2 * size, generator=generator) * 0.3
    if copies:
        projection = torch.cat([torch.eye(size), torch.zeros(size, size)], dim=1)
    stored = {"projection": projection}
    for name in ("embedding", "hidden", "norm"):
        like = tensors["model.norm.weight"]
        noise = torch.rand(size, generator=generator) * 0.2
        stored[name] = like.clone() if copies else like + noise
    if copies:  # the embedding is normed once more than it is for the model's own head
        stored["embedding"] = torch.zeros(size) if qwen else torch.ones(size)
    for name, (by_qwen, by_others) in _NAMES.items():
        full = f"mtp.{by_qwen}.weight" if qwen else f"{own}.{by_others}.weight"
        head[full] = stored[name]
    return head


def _is_alike(tensors: dict[str, Tensor], layer: int) -> bool:
    """Whether it attends and, in a model with experts, has some."""
    names = [name for name in tensors if name.startswith(f"model.layers.{layer}.")]
    has_experts = any(".experts." in name for name in tensors)
    return any(".self_attn." in name for name in names) and has_experts == any(
        ".experts." in name for name in names
    )
