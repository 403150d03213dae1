"""A short name for what a model computes: equal for the same files on any host and device.

Two workers with the same fingerprint may go on with each other's texts. It covers the weights and
the format they are brought to, the configuration, the tokenizer with its chat template, and the
dtype. Of the weights only a sample from each tensor is read, so it takes milliseconds, whatever the
size of the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roseinfer.checkpoints.gguf.header import read_header
from roseinfer.checkpoints.safetensors_files import parameters_of_files, stored_file
from roseinfer.checkpoints.sources import gguf_file

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


def fingerprint(
    source: str, tokenizer_source: str, model: Any, weights_format: str | None = None
) -> str:
    """Of a model that was just loaded. Both sources are folders, GGUF files or names on the hub;
    `weights_format` is what its weights will be brought to, if anything."""
    dtype = str(model.dtype) if weights_format is None else f"{model.dtype}, {weights_format}"
    return _fingerprint(source, tokenizer_source, dtype, model.named_parameters())


def fingerprint_of_files(source: str, tokenizer_source: str, dtype: torch.dtype) -> str:
    """Of a model that something else computes in `dtype`, by its safetensors.

    It is that of the same model loaded here, unless transformers would rename or convert weights.
    """
    weights = parameters_of_files(source)
    return _fingerprint(source, tokenizer_source, str(dtype), weights, dtype)


def _fingerprint(
    source: str,
    tokenizer_source: str,
    dtype: str,
    weights: Iterable[tuple[str, Tensor]],
    cast: torch.dtype | None = None,
) -> str:
    digest = hashlib.sha256(dtype.encode())
    for where, names in ((source, _MODEL_FILES), (tokenizer_source, _TOKENIZER_FILES)):
        if (gguf := gguf_file(where)) is not None:
            digest.update(b"\0gguf\0")
            digest.update(_header(gguf))
            continue
        for name in names:
            path = stored_file(where, name)
            if path is not None:
                digest.update(f"\0{name}\0".encode())
                digest.update(path.read_bytes())
    _add_weights(digest, weights, cast)
    return digest.hexdigest()[:16]


def _header(path: Path) -> bytes:
    """All of a GGUF file but its weights."""
    with path.open("rb") as file:
        return file.read(read_header(path).data_start)


def _add_weights(
    digest: Any, named: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None
) -> None:
    """Those of `dtype`, if it is given, else as they are."""
    samples = []
    for name, weights in sorted(named, key=itemgetter(0)):
        digest.update(f"\0{name}{tuple(weights.shape)}".encode())
        flat = weights.detach().reshape(-1)
        step = max(1, flat.numel() // _SAMPLES)
        sample = flat[::step][:_SAMPLES]
        samples.append((sample if dtype is None else sample.to(dtype)).float())
    if samples:  # in one copy from the device
        digest.update(torch.cat(samples).cpu().numpy().tobytes())
