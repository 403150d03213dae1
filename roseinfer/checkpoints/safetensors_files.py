"""The weights of a checkpoint in its safetensors files, without a model around them."""

import json
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.hub import cached_file

from rose.errors import UnsupportedModel

_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SUFFIX = ".safetensors"


def stored_file(source: str, name: str, *, download: bool = False) -> Path | None:
    """A file of a folder, or of a name on the hub that was loaded before or may be downloaded.
    None if there is none."""
    if (folder := Path(source)).is_dir():
        return folder / name if (folder / name).is_file() else None
    cached = cached_file(
        source,
        name,
        local_files_only=not download,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if cached is None else Path(cached)


def check_index(source: str) -> None:
    """transformers would unpickle a file of another kind.

    Raises UnsupportedModel if the index of the weights names something else than safetensors.
    """
    if stored_file(source, _FILE) is None:
        index = stored_file(source, _INDEX, download=True)
        if index is not None:
            _shards(index)


def parameters_of_files(source: str) -> Iterator[tuple[str, Tensor]]:
    """The parameters of the model at `source` by the names that transformers gives them, each once.
    Where that is not how they are stored, everything by its name in the files.

    A tensor is mapped from its file, so only the parts that are used are read.
    """
    with ExitStack() as stack:
        where = {}
        for path in _files(source):
            file = stack.enter_context(safe_open(path, framework="pt"))
            where.update(dict.fromkeys(file.keys(), file))
        names = _names(source, where.keys()) or {key: key for key in where}
        for name, key in names.items():
            yield name, where[key].get_tensor(key)


def stored_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """What a checkpoint of `model` has, each once: parameters and the buffers that are saved."""
    yield from model.named_parameters()
    saved = model.state_dict().keys()
    yield from (pair for pair in model.named_buffers() if pair[0] in saved)


def tensors_of_files(source: str, only: Iterable[str] | None = None) -> dict[str, Tensor]:
    """Everything in the safetensors at `source`, or these, by its name in the files. A tensor is
    mapped from its file."""
    tensors = {}
    for path in _files(source):
        with safe_open(path, framework="pt") as file:
            names = file.keys() if only is None else set(only) & set(file.keys())
            tensors.update({name: file.get_tensor(name) for name in names})
    return tensors


def stored_dtypes(source: str) -> dict[str, str]:
    """The types of everything in the safetensors at `source`, as the files call them.

    Raises UnsupportedModel for a name that is in two files.
    """
    dtypes: dict[str, str] = {}
    for path in _files(source):
        with safe_open(path, framework="pt") as file:
            own = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
        if both := sorted(own.keys() & dtypes.keys()):
            raise UnsupportedModel(f"the tensor {both[0]!r} is in two files of {source!r}")
        dtypes |= own
    return dtypes


def fetch(name: str) -> str:
    """The folder with the safetensors of a name on the hub. Raises OSError."""
    return snapshot_download(name, allow_patterns=[_FILE, _INDEX, "model-*.safetensors"])


def _files(source: str) -> list[Path]:
    if (file := stored_file(source, _FILE)) is not None:
        return [file]
    if (index := stored_file(source, _INDEX)) is None:
        return []
    paths = [stored_file(source, name) for name in _shards(index)]
    return [path for path in paths if path is not None]


def _shards(index: Path) -> list[str]:
    """The names of the files in an index."""
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UnsupportedModel(
            f"{str(index)!r} is no index of weights ({type(error).__name__}): its weight_map must "
            "say for each tensor in which file it lies"
        ) from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(_SUFFIX):
            raise UnsupportedModel(
                f"{str(index)!r} names the file {name!r}: only *{_SUFFIX} beside it are read, for "
                "a pickle may run code; save the model again (save_pretrained)"
            )
    return names


def _names(source: str, keys: AbstractSet[str]) -> dict[str, str] | None:
    """The key of each of transformers' parameters; None if some parameter has no key."""
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False, local_files_only=True)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception:  # noqa: BLE001 - vLLM serves models that transformers does not know
        return None
    prefix = f"{model.base_model_prefix}."
    names = {}
    for name, _ in stored_tensors(model):
        candidates = (name, name.removeprefix(prefix))
        key = next((key for key in candidates if key in keys), None)
        if key is None:
            return None
        names[name] = key
    return names
