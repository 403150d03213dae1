"""A model with its weights: all of them, and no number that transformers made up."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, GenerationConfig

from rose.errors import ModelNotFound, UnsupportedModel
from roseinfer.checkpoints import prequantized
from roseinfer.checkpoints.configuration import load_config
from roseinfer.checkpoints.gguf import checkpoint as gguf
from roseinfer.checkpoints.location import Location, locate
from roseinfer.checkpoints.safetensors_files import check_index, fetch, tensors_of_files
from roseinfer.checkpoints.sources import resolve
from roseinfer.checkpoints.transformers_messages import first_line, quiet, unsupported
from roseinfer.model.attention import IMPLEMENTATION
from roseinfer.model.quantized_weight import QuantizedWeight

_logger = logging.getLogger(__name__)


def load_model(
    source: str, device: torch.device, dtype: torch.dtype | None
) -> tuple[Any, Mapping[str, QuantizedWeight] | None]:
    """The causal language model at `source`, in evaluation mode, with the engine's attention; and
    the quantized matrices of its safetensors by their names, if it has such.

    In the model they are what they stand for, in `dtype`. Raises ModelNotFound if there is none to
    load, UnsupportedModel if it is no such model or its weights are incomplete.
    """
    source = resolve(source)
    with locate(source) as location:
        config = load_config(location)
        if location.header is None:
            check_index(source)
        split = _take_prequantized(location, config)
        model, info = _load_weights(location, config, device, dtype, split)
    _check_complete(config, info)
    if location.header is not None:
        gguf.check_weights(location.header, model)
    return model.to(device).eval(), None if split is None else split.quantized


def _take_prequantized(location: Location, config: Any) -> prequantized.Split | None:
    """The tensors of a pre-quantized checkpoint; what says so leaves `config`, so that
    transformers loads a plain model. None: transformers reads all of it, or says why not."""
    described = getattr(config, "quantization_config", None)
    if location.header is not None or not isinstance(described, dict):
        return None
    layout = prequantized.find_layout(described)
    if layout is None:
        return None
    del config.quantization_config
    try:
        folder = location.folder if Path(location.folder).is_dir() else fetch(location.folder)
    except OSError as error:
        raise ModelNotFound(
            f"no safetensors weights at {location.source!r}: {first_line(error)}"
        ) from error
    return prequantized.split(tensors_of_files(folder), layout)


def _load_weights(
    location: Location,
    config: Any,
    device: torch.device,
    dtype: torch.dtype | None,
    split: prequantized.Split | None,
) -> tuple[Any, dict[str, Any]]:
    """The model, and what transformers says of its loading."""
    loader, folder, arguments = _loader(location, config, dtype, split)
    with quiet():
        with _weight_errors(location.source, config):
            model, info = loader.from_pretrained(
                folder,
                config=config,
                attn_implementation=IMPLEMENTATION,
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
            _add_generation_config(model, location.folder)
    return model, info


def _loader(
    location: Location, config: Any, dtype: torch.dtype | None, split: prequantized.Split | None
) -> tuple[Any, str | None, dict[str, Any]]:
    """transformers' class that loads the weights, the folder that it reads, and the arguments that
    depend on how the weights are stored."""
    if split is not None:
        # Quantized weights are of float16 scales, in which few processors compute.
        dtype = dtype or torch.bfloat16
        # Without a folder AutoModelForCausalLM looks for its files all the same.
        loader = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), AutoModelForCausalLM)
        return loader, None, {"dtype": dtype, "state_dict": split.state_dict(dtype)}
    arguments = {"dtype": dtype or "auto", **location.arguments}
    if location.header is not None:
        # Quantized weights have no type of their own to take over.
        arguments |= {"dtype": dtype or torch.bfloat16, **gguf.MODEL_ARGUMENTS}
    return AutoModelForCausalLM, location.folder, arguments


@contextmanager
def _weight_errors(source: str, config: Any) -> Iterator[None]:
    """What transformers raises where it reads weights, as ModelNotFound or UnsupportedModel."""
    try:
        yield
    except OSError as error:
        raise ModelNotFound(f"no safetensors weights at {source!r}: {first_line(error)}") from error
    except SafetensorError as error:
        raise UnsupportedModel(
            f"the safetensors at {source!r} cannot be read ({first_line(error)}): they are cut "
            "off or damaged, or pointers of Git LFS (`git lfs pull` fetches the files)"
        ) from error
    except Exception as error:
        raise unsupported(config, first_line(error)) from error


def _add_generation_config(model: Any, folder: str) -> None:
    """What transformers reads beside weights in files; a checkpoint need not have one."""
    with suppress(OSError):
        model.generation_config = GenerationConfig.from_pretrained(folder)


def _check_complete(config: Any, info: dict[str, Any]) -> None:
    """Refuse what transformers would fill in with random numbers and a warning. Say what it leaves
    out: a checkpoint may have more than is needed, or a configuration that is not its own."""
    if missing := sorted(info.get("missing_keys") or ()):
        raise unsupported(
            config, f"{len(missing)} of its weights are missing, {missing[0]} among them"
        )
    if mismatched := sorted(info.get("mismatched_keys") or ()):
        name, stored, configured = mismatched[0]
        raise unsupported(
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
