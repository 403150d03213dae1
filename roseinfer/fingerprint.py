"""A short name for what a model computes: equal for the same files on any host and device.

Two workers with the same fingerprint may go on with each other's texts. It covers the weights, the
configuration, the tokenizer with its chat template, and the dtype. Of the weights only a sample
from each tensor is read, so it takes milliseconds, whatever the size of the model.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from transformers.utils.hub import cached_file

from roseinfer.gguf.header import read_header
from roseinfer.sources import gguf_file

#: Elements of each tensor, evenly spaced: training moves all of them, if only a little.
_SAMPLES = 64

#: What decides how text becomes token ids and back, and when a text ends.
_MODEL_FILES = ("config.json", "generation_config.json")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def fingerprint(source: str, tokenizer_source: str, model: Any) -> str:
    """Of a model that was just loaded. Both sources are folders, GGUF files or names on the hub."""
    digest = hashlib.sha256(str(model.dtype).encode())
    for where, names in ((source, _MODEL_FILES), (tokenizer_source, _TOKENIZER_FILES)):
        if (gguf := gguf_file(where)) is not None:
            digest.update(b"\0gguf\0")
            digest.update(_header(gguf))
            continue
        for name in names:
            path = _file(where, name)
            if path is not None:
                digest.update(f"\0{name}\0".encode())
                digest.update(path.read_bytes())
    _add_weights(digest, model)
    return digest.hexdigest()[:16]


def _header(path: Path) -> bytes:
    """All of a GGUF file but its weights."""
    with path.open("rb") as file:
        return file.read(read_header(path).data_start)


def _file(source: str, name: str) -> Path | None:
    """None if there is none. It was loaded before, so nothing is downloaded."""
    if (folder := Path(source)).is_dir():
        return folder / name if (folder / name).is_file() else None
    cached = cached_file(
        source,
        name,
        local_files_only=True,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if cached is None else Path(cached)


def _add_weights(digest: Any, model: Any) -> None:
    samples = []
    for name, weights in sorted(model.named_parameters()):
        digest.update(f"\0{name}{tuple(weights.shape)}".encode())
        flat = weights.detach().reshape(-1)
        step = max(1, flat.numel() // _SAMPLES)
        samples.append(flat[::step][:_SAMPLES].float())
    if samples:  # in one copy from the device
        digest.update(torch.cat(samples).cpu().numpy().tobytes())
