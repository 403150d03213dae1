"""The LoRA adapters that jobs may name: a registry from the settings, and nothing else.

An adapter is a folder with `adapter_config.json` and `adapter_model.safetensors`, or the name of
one on the hub.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download

from rose.errors import ConfigurationError
from rose.protocol.jobs import ADAPTER_PATTERN

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Adapter:
    name: str
    number: int
    """from 1; vLLM knows it by this"""
    folder: Path
    rank: int

    def digest(self) -> bytes:
        """Of its files, which are small beside the model's."""
        digest = hashlib.sha256(self.name.encode())
        for name in (_CONFIG, _WEIGHTS):
            with (self.folder / name).open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
        return digest.digest()


def find_adapters(setting: str) -> dict[str, Adapter]:
    """The adapters of a setting "NAME=SOURCE,NAME=SOURCE", by name; what is on the hub is fetched.

    Raises: ConfigurationError
    """
    adapters: dict[str, Adapter] = {}
    for number, item in enumerate(filter(None, (part.strip() for part in setting.split(","))), 1):
        name, equals, source = item.partition("=")
        if not equals or not source or not re.fullmatch(ADAPTER_PATTERN, name):
            raise ConfigurationError(
                f"ROSE_ADAPTERS: {item!r} is not NAME=SOURCE, where a name has letters, digits, "
                '"_", "." and "-"'
            )
        if name in adapters:
            raise ConfigurationError(f"ROSE_ADAPTERS names {name!r} twice")
        folder = _folder(source)
        adapters[name] = Adapter(name, number, folder, _rank(name, folder))
    return adapters


def with_adapters(fingerprint: str, adapters: Mapping[str, Adapter]) -> str:
    """The fingerprint of a model with these adapters: a job that names one must not continue with
    another of that name."""
    if not adapters:
        return fingerprint
    digest = hashlib.sha256(fingerprint.encode())
    for _, adapter in sorted(adapters.items()):
        digest.update(adapter.digest())
    return digest.hexdigest()[:16]


def _folder(source: str) -> Path:
    folder = Path(source).expanduser()
    if not folder.is_dir():
        if folder.is_absolute() or source.startswith(".") or source.count("/") != 1:
            raise ConfigurationError(f"ROSE_ADAPTERS: there is no folder {source!r}")
        try:
            # These files only: others may be pickles or code.
            folder = Path(snapshot_download(source, allow_patterns=[_CONFIG, _WEIGHTS]))
        except Exception as error:
            raise ConfigurationError(
                f"ROSE_ADAPTERS: {source!r} cannot be fetched: {' '.join(str(error).split())}"
            ) from error
    for name in (_CONFIG, _WEIGHTS):
        if not (folder / name).is_file():
            raise ConfigurationError(f"ROSE_ADAPTERS: there is no {name} in {source!r}")
    return folder


def _rank(name: str, folder: Path) -> int:
    try:
        rank = json.loads((folder / _CONFIG).read_bytes())["r"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"ROSE_ADAPTERS: {_CONFIG} of {name!r} has no rank (r): {error!r}"
        ) from None
    if not isinstance(rank, int) or rank < 1:
        raise ConfigurationError(f"ROSE_ADAPTERS: the rank of {name!r} is {rank!r}")
    return rank
