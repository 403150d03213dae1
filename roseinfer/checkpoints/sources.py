"""The source of a model: a local folder, a GGUF file, or a name on the hub."""

import sys
from pathlib import Path

from rose.errors import ConfigurationError, ModelNotFound
from rose.memory import gigabytes
from roseinfer.checkpoints.gguf.header import read_header


def resolve(source: str) -> str:
    """The folder, file or hub name to load. What can only be a path is not looked up on the hub.

    Raises ModelNotFound if it can only be a path, and there is nothing.
    """
    path = Path(source).expanduser()
    if path.is_dir() or path.is_file():
        return str(path)
    if path.suffix == ".gguf":
        raise ModelNotFound(f"no file {source!r}: give a GGUF file that is on this machine")
    if path.is_absolute() or source.startswith(".") or source.count("/") > 1:
        raise ModelNotFound(f"no folder {source!r}: give a model's folder or its name on the hub")
    return source


def gguf_file(source: str) -> Path | None:
    """The file that was resolved to `source`; None for a folder or a name on the hub."""
    path = Path(source)
    return path if path.is_file() else None


def check_interpreter() -> None:
    """Raises ConfigurationError: it has left out docstrings."""
    if sys.flags.optimize > 1:
        raise ConfigurationError(
            "transformers reads its own docstrings when it loads a model, and python -OO or "
            "PYTHONOPTIMIZE=2 leaves them out: use -O or PYTHONOPTIMIZE=1"
        )


def check(source: str | None) -> None:
    """What can be said of a source at once, before torch is loaded. None: the built-in model.

    Raises ModelNotFound, UnsupportedModel, ConfigurationError.
    """
    check_interpreter()
    path = None if source is None else gguf_file(resolve(source))
    if path is not None:
        read_header(path)


def describe(source: str) -> str:
    """What is to be loaded: its name, its size and where it is."""
    path = Path(resolve(source))
    files = [path] if path.is_file() else [*path.glob("*.safetensors")]
    if not files:
        return f"{source}, from the hub or its cache here"
    size = sum(file.stat().st_size for file in files)
    return f"{model_name(str(path))}, {gigabytes(size)} in {path}"


def model_name(source: str) -> str:
    """What clients call the model: the name of the folder, or of the file without its ending."""
    path = Path(source)
    return path.stem if path.suffix == ".gguf" else path.name
