"""A short name for what a model computes: equal for the same files on any host and device.

Two workers with the same fingerprint may go on with each other's texts. It covers the weights and
the format they are brought to, the configuration, every file of the tokenizer with its chat
templates, and the dtype. Of the weights a few numbers of each row are read, so a change of one
token's embedding shows, and it takes about a tenth of a second for a gigabyte.
"""

import hashlib
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from roseinfer.checkpoints.gguf.header import read_header
from roseinfer.checkpoints.safetensors_files import (
    parameters_of_files,
    stored_file,
    stored_tensors,
)
from roseinfer.checkpoints.sources import gguf_file

#: Numbers of each row that lie together, from another column in each row.
_SAMPLES = 4
_COLUMN_STEP = 61

#: What decides how text becomes token ids and back, and when a text ends.
_MODEL_FILES = ("config.json", "generation_config.json")
#: All that classes of transformers read; of further templates see `_templates`.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "sentencepiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "tekken.json",
    "normalizer.json",
    "chat_template.jinja",
    "chat_template.json",
)
_TEMPLATES = "additional_chat_templates"


def fingerprint(
    source: str,
    tokenizer_source: str,
    model: Any,
    weights_format: str | None = None,
    samples: Mapping[Tensor, Tensor] = MappingProxyType({}),
) -> str:
    """Of a model that was just loaded. Both sources are folders, GGUF files or names on the hub;
    `weights_format` is what its weights will be brought to, if anything; `samples` are those of
    parameters that have been dropped."""
    dtype = str(model.dtype) if weights_format is None else f"{model.dtype}, {weights_format}"
    weights = stored_tensors(model)
    return _fingerprint(source, tokenizer_source, dtype, weights, samples=samples)


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
    samples: Mapping[Tensor, Tensor] = MappingProxyType({}),
) -> str:
    digest = hashlib.sha256(dtype.encode())
    for where, names in ((source, _MODEL_FILES), (tokenizer_source, _TOKENIZER_FILES)):
        if (gguf := gguf_file(where)) is not None:
            digest.update(b"\0gguf\0")
            digest.update(_header(gguf))
            continue
        paths = {name: path for name in names if (path := stored_file(where, name)) is not None}
        if names is _TOKENIZER_FILES:
            paths |= _templates(paths.values())
        for name, path in paths.items():
            content = path.read_bytes()
            digest.update(f"\0{name} {len(content)}\0".encode())
            digest.update(content)
    _add_weights(digest, weights, cast, samples)
    return digest.hexdigest()[:16]


def _templates(tokenizer: Iterable[Path]) -> dict[str, Path]:
    """The templates for other purposes, in a folder beside the files of the tokenizer."""
    found = {
        f"{_TEMPLATES}/{path.name}": path
        for folder in {path.parent for path in tokenizer}
        for path in folder.glob(f"{_TEMPLATES}/*.jinja")
    }
    return dict(sorted(found.items()))


def _header(path: Path) -> bytes:
    """All of a GGUF file but its weights."""
    with path.open("rb") as file:
        return file.read(read_header(path).data_start)


def _add_weights(
    digest: Any,
    named: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype | None,
    known: Mapping[Tensor, Tensor],
) -> None:
    """Those of `dtype`, if it is given, else as they are. Of some the samples are `known`."""
    samples = []
    for name, weights in sorted(named, key=itemgetter(0)):
        digest.update(f"\0{name}{tuple(weights.shape)}".encode())
        own = known[weights] if weights in known else sample(weights.detach())
        samples.append((own if dtype is None else own.to(dtype)).float())
    if samples:  # in one copy from the device
        digest.update(torch.cat(samples).cpu().numpy().tobytes())


def sample(weights: Tensor) -> Tensor:
    """Of a vector all numbers, of anything else some of each row."""
    columns = weights.shape[-1] if weights.dim() else 1
    if weights.dim() < 2 or columns <= _SAMPLES:
        return weights.reshape(-1)
    flat = weights.reshape(-1)
    rows = torch.arange(flat.numel() // columns, device=flat.device)
    first = rows * columns + rows * _COLUMN_STEP % (columns - _SAMPLES + 1)
    return flat[first[:, None] + torch.arange(_SAMPLES, device=flat.device)].flatten()
