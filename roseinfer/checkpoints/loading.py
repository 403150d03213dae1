"""Finding and loading a checkpoint: a local folder or a hub name with safetensors, or a GGUF file.

No pickle is read, and no code that comes with a model is run.

Errors of transformers and the tokenizers library for a bad checkpoint become ModelNotFound or
UnsupportedModel with one line that says what to do.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
)
from transformers.utils import logging as hf_logging

from rose.errors import ConfigurationError, ModelNotFound, UnsupportedModel
from roseinfer.checkpoints import prequantized
from roseinfer.checkpoints.fingerprint import fingerprint
from roseinfer.checkpoints.gguf import blocks
from roseinfer.checkpoints.gguf import checkpoint as gguf
from roseinfer.checkpoints.gguf.header import Header, read_header
from roseinfer.checkpoints.safetensors_files import fetch, tensors_of_files
from roseinfer.checkpoints.sources import gguf_file, model_name, resolve
from roseinfer.demo_model import MODEL_PATH
from roseinfer.model.attention import IMPLEMENTATION
from roseinfer.model.probe import BYPASSED
from roseinfer.model.quantization import FROM_FILE, QuantizedWeight, check_format

_logger = logging.getLogger(__name__)

#: More than any model has. transformers makes as many modules as a configuration says before it
#: looks for weights, and a billion of them take all memory.
_MAX_LAYERS = 4096
_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, in evaluation mode and with the engine's attention, and its tokenizer."""

    model: Any
    tokenizer: Any | None
    name: str
    fingerprint: str = ""
    """see `checkpoints.fingerprint`; empty if it did not come from files"""
    weights: str | None = None
    """the format that they are to be brought to; see `model.quantization`"""
    stored: Mapping[str, QuantizedWeight] | None = None
    """those of the file as they are, by the parameters' names, where that is the format"""


def load(
    checkpoint_path: str | Path | None,
    tokenizer_name: str | None,
    device: str | None,
    dtype: str | None,
    weights: str | None = None,
) -> LoadedModel:
    """The model at a path or of a hub name; None is the built-in one. See `InferenceEngine`."""
    if checkpoint_path is None:
        source, name = str(MODEL_PATH), "built-in"
    else:
        source, name = str(checkpoint_path), model_name(str(checkpoint_path))
    source = resolve(source)
    tokenizer_source = resolve(tokenizer_name or source)
    target, precision = _target(device, dtype, weights)
    from_gguf = gguf_file(source) or gguf_file(tokenizer_source)
    with gguf.load_once() if from_gguf else nullcontext():
        model, quantized = load_model(source, target, precision)
        tokenizer = load_tokenizer(tokenizer_source)
        stored = _stored_weights(source, model, quantized) if weights == FROM_FILE else None
    own = fingerprint(source, tokenizer_source, model, weights)
    return LoadedModel(model, tokenizer, name, own, weights, stored)


def _stored_weights(
    source: str, model: Any, quantized: Mapping[str, QuantizedWeight] | None
) -> Mapping[str, QuantizedWeight]:
    """Raises ConfigurationError for a checkpoint that is not quantized."""
    if (path := gguf_file(source)) is not None:
        return blocks.stored_weights(path, model)
    if quantized is None:
        raise ConfigurationError(
            f"weights={FROM_FILE!r} keeps the numbers of GGUF, GPTQ, AWQ and compressed-tensors, "
            f"and {source!r} is none of these: leave weights out, or choose int8 or int4"
        )
    return quantized


def _target(
    device: str | None, dtype: str | None, weights: str | None
) -> tuple[torch.device, torch.dtype | None]:
    """Where the model goes, and in which dtype. Raises ConfigurationError."""
    target = parse_device(device)
    if weights is None:
        return target, parse_dtype(dtype, target)
    check_format(weights, target, None if dtype is None else parse_dtype(dtype, target))
    return target, torch.bfloat16


def parse_device(name: str | None) -> torch.device:
    """The device called `name`; None means CUDA where there is one. Raises ConfigurationError."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(f"device={name!r} cannot be used: {reason}") from error
    return device


def parse_dtype(name: str | None, device: torch.device) -> torch.dtype | None:
    """The dtype called `name`. None means float32 on CPU and the checkpoint's own on CUDA, which
    is bfloat16 for a GGUF file."""
    if name is None:
        return torch.float32 if device.type == "cpu" else None
    if name not in _DTYPES:
        raise ConfigurationError(f"dtype={name!r} is not one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def load_model(
    source: str, device: torch.device, dtype: torch.dtype | None
) -> tuple[Any, Mapping[str, QuantizedWeight] | None]:
    """The causal language model at `source`, in evaluation mode, with the engine's attention; and
    the quantized matrices of its safetensors by their names, if it has such.

    In the model they are what they stand for, in `dtype`. Raises ModelNotFound if there is none to
    load, UnsupportedModel if it is no such model or its weights are incomplete.
    """
    source = resolve(source)
    with _place(source) as place:
        config = _load_config(place)
        split = _take_prequantized(place, config)
        model, info = _load_weights(place, config, device, dtype, split)
    _check_complete(config, info)
    if place.header is not None:
        gguf.check_weights(place.header, model)
    return model.to(device).eval(), None if split is None else split.quantized


def _take_prequantized(place: _Place, config: Any) -> prequantized.Split | None:
    """The tensors of a pre-quantized checkpoint; what says so leaves `config`, so that
    transformers loads a plain model. None: transformers reads all of it, or says why not."""
    described = getattr(config, "quantization_config", None)
    if place.header is not None or not isinstance(described, dict):
        return None
    layout = prequantized.find_layout(described)
    if layout is None:
        return None
    del config.quantization_config
    try:
        folder = place.folder if Path(place.folder).is_dir() else fetch(place.folder)
    except OSError as error:
        raise ModelNotFound(
            f"no safetensors weights at {place.source!r}: {_first_line(error)}"
        ) from error
    return prequantized.split(tensors_of_files(folder), layout)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where transformers finds a model, and what it must be told to read it."""

    source: str
    """as whoever loads it calls it"""
    folder: str
    """or the name on the hub"""
    arguments: dict[str, str]
    header: Header | None = None
    """of a GGUF file"""


@contextmanager
def _place(source: str) -> Iterator[_Place]:
    """Raises ModelNotFound and UnsupportedModel for a file that cannot be a model."""
    path = gguf_file(source)
    if path is None:
        yield _Place(source, source, {})
        return
    header = read_header(path)
    with gguf.alone(path) as (folder, arguments):
        yield _Place(source, folder, arguments, header)


def _load_weights(
    place: _Place,
    config: Any,
    device: torch.device,
    dtype: torch.dtype | None,
    split: prequantized.Split | None,
) -> tuple[Any, dict[str, Any]]:
    """The model, and what transformers says of its loading."""
    chosen: torch.dtype | str = dtype or "auto"
    loader: Any = AutoModelForCausalLM
    folder: str | None = place.folder
    arguments: dict[str, Any] = dict(place.arguments)
    if split is not None:
        # Quantized weights are of float16 scales, in which few processors compute.
        chosen = dtype or torch.bfloat16
        folder, arguments["state_dict"] = None, split.state(chosen)
        # Without a folder the other one looks for its files all the same.
        loader = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), loader)
    if place.header is not None:
        # Quantized weights have no type of their own to take over.
        chosen = dtype or torch.bfloat16
        arguments |= gguf.MODEL_ARGUMENTS
    with _quiet():
        with _weight_errors(place.source, config):
            model, info = loader.from_pretrained(
                folder,
                config=config,
                attn_implementation=IMPLEMENTATION,
                dtype=chosen,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                # `_check_complete` names them.
                ignore_mismatched_sizes=True,
                # Straight to the device, without a copy in main memory.
                device_map={"": device} if device.type == "cuda" and _has_accelerate() else None,
                **arguments,
            )
        if split is not None:
            _add_generation_config(model, place.folder)
    return model, info


@contextmanager
def _weight_errors(source: str, config: Any) -> Iterator[None]:
    """What transformers raises where it reads weights, as ModelNotFound or UnsupportedModel."""
    try:
        yield
    except OSError as error:
        raise ModelNotFound(
            f"no safetensors weights at {source!r}: {_first_line(error)}"
        ) from error
    except SafetensorError as error:
        raise UnsupportedModel(
            f"the safetensors at {source!r} cannot be read ({_first_line(error)}): they are cut "
            "off or damaged, or pointers of Git LFS (`git lfs pull` fetches the files)"
        ) from error
    except Exception as error:
        raise _unsupported(config, _first_line(error)) from error


def _add_generation_config(model: Any, folder: str) -> None:
    """What transformers reads beside weights in files; a checkpoint need not have one."""
    with suppress(OSError):
        model.generation_config = GenerationConfig.from_pretrained(folder)


def load_tokenizer(source: str) -> Any:
    """The fast tokenizer at `source`. Raises ModelNotFound or UnsupportedModel."""
    source = resolve(source)
    with _place(source) as place, _quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                place.folder, trust_remote_code=False, **place.arguments
            )
        except Exception as error:
            raise ModelNotFound(
                f"no tokenizer at {source!r}: {_first_line(error)}; "
                "name one with tokenizer_name (`rose worker --tokenizer`)"
            ) from error
    if not tokenizer.is_fast:
        raise UnsupportedModel(
            f"the tokenizer at {source!r} is not a fast one: the engine needs a tokenizer.json"
        )
    return tokenizer


def _load_config(place: _Place) -> Any:
    source, folder = place.source, Path(place.folder)
    if place.header is None and folder.is_dir() and not (folder / "config.json").is_file():
        raise ModelNotFound(
            f"no model in the folder {source!r}: it has no config.json{_instead(folder)}"
        )
    with _quiet():
        try:
            config = AutoConfig.from_pretrained(
                place.folder, trust_remote_code=False, **place.arguments
            )
        except OSError as error:
            raise ModelNotFound(f"no model at {source!r}: {_first_line(error)}") from error
        except Exception as error:
            raise UnsupportedModel(
                f"the configuration at {source!r} cannot be read: {_first_line(error)}"
            ) from error
    if place.header is not None:
        gguf.check_config(place.header, config)
    layers = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    if isinstance(layers, int) and layers > _MAX_LAYERS:
        raise _unsupported(config, f"its config.json says that it has {layers:,} layers")
    return config


def _instead(folder: Path) -> str:
    """What to name where a folder is none with a model's configuration, as far as one can see."""
    if files := sorted(folder.glob("*.gguf")):
        return f"; name a GGUF file itself: {str(files[0])!r}"
    if (folder / "adapter_config.json").is_file():
        return "; it is a LoRA adapter: name the model that it is for"
    return ""


def _unsupported(config: Any, reason: str) -> UnsupportedModel:
    model_type = getattr(config, "model_type", "unknown")
    return UnsupportedModel(f"model type {model_type!r} cannot be loaded: {reason}")


def _check_complete(config: Any, info: dict[str, Any]) -> None:
    """Refuse what transformers would fill in with random numbers and a warning. Say what it leaves
    out: a checkpoint may have more than is needed, or a configuration that is not its own."""
    if missing := sorted(info.get("missing_keys") or ()):
        raise _unsupported(
            config, f"{len(missing)} of its weights are missing, {missing[0]} among them"
        )
    if mismatched := sorted(info.get("mismatched_keys") or ()):
        name, stored, configured = mismatched[0]
        raise _unsupported(
            config,
            f"{len(mismatched)} of its weights have another shape than config.json says, {name} "
            f"among them: {list(stored)}, and not {list(configured)}",
        )
    if unexpected := sorted(info.get("unexpected_keys") or ()):
        _logger.warning(
            "%d tensors of the checkpoint are not used, %s among them: if its config.json is not "
            "its own, the texts are wrong",
            len(unexpected),
            unexpected[0],
        )


def _has_accelerate() -> bool:
    """transformers loads to a device only with it."""
    return importlib.util.find_spec("accelerate") is not None


def _first_line(error: BaseException) -> str:
    if isinstance(error, KeyError):
        if error.args == (IMPLEMENTATION,):
            return BYPASSED
        return f"transformers looked for {error} and found nothing"
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' progress bars and load reports off our users' terminals."""
    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity(transformers.logging.ERROR)
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()
