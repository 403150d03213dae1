"""A model with its weights: all of them, and no number that transformers made up."""

import importlib.util
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, GenerationConfig
from transformers.quantizers import AutoHfQuantizer

from rose.errors import ConfigurationError, ModelNotFound, UnsupportedModel
from roseinfer.checkpoints import prequantized
from roseinfer.checkpoints.arrivals import Arrivals, in_turn
from roseinfer.checkpoints.configuration import TEXT_PART, load_config, text_part
from roseinfer.checkpoints.draft_layer import DraftLayer, load_draft_layer
from roseinfer.checkpoints.gguf import checkpoint as gguf
from roseinfer.checkpoints.gguf.blocks import StoredBlocks
from roseinfer.checkpoints.gguf.layouts import lazy_parameters
from roseinfer.checkpoints.location import Location, locate
from roseinfer.checkpoints.memory_need import FindKept, check_memory
from roseinfer.checkpoints.safetensors_files import (
    check_index,
    fetch,
    stored_dtypes,
    stored_file,
    tensors_of_files,
)
from roseinfer.checkpoints.scaled_weights import find_scaling, take_scaled
from roseinfer.checkpoints.sources import resolve
from roseinfer.checkpoints.transformers_messages import first_line, quiet, unsupported
from roseinfer.model.attention import IMPLEMENTATION
from roseinfer.model.quantization import FROM_FILE

# Tensors that no causal language model reads when it reads text: what earlier versions of
# transformers stored though it can be computed, towers for images and sounds, heads for further
# tokens and for values.
_HARMLESS = re.compile(
    r"rotary_emb\.inv_freq$|(^|\.)position_ids$|\.(attn|attention)\.(masked_)?bias$"
    r"|(^|\.)(vision_tower|vision_model|visual|vision_encoder|audio_tower|audio_encoder"
    r"|multi_modal_projector|mm_projector|embed_vision|embed_audio|mtp|mtp_block|v_head)\."
)
# Tensors that are whole numbers, or truth values, by their nature.
_OF_A_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks)\.(\d+)\.")
_WHOLE_NUMBERS = re.compile(
    r"(^|\.)(position_ids|num_batches_tracked|tid2eid|(attn|attention)\.(masked_)?bias)$"
)


class LoadedWeights(NamedTuple):
    """A model; what was taken of it for a format of weights, each matrix of its layers when it was
    read; and its layer for further tokens, if one was asked for and can be used."""

    model: Any
    arrivals: Arrivals | None
    draft_layer: DraftLayer | None


def load_model(
    source: str,
    device: torch.device,
    dtype: torch.dtype | None,
    weights: str | None = None,
    cache_tokens: int | None = None,
    *,
    own_drafts: bool = False,
    besides: Collection[str] = (),
) -> LoadedWeights:
    """The causal language model at `source`, in evaluation mode, with the engine's attention, and
    with `own_drafts` its layer for further tokens. `besides`: tensors of a GGUF file that the
    caller reads.

    Raises ModelNotFound if there is none to load, UnsupportedModel if it is no such model or its
    weights are incomplete, ConfigurationError if they cannot have that format, or if main memory
    cannot hold them, with a KV cache of `cache_tokens`.
    """
    source = resolve(source)
    with locate(source) as location:
        config, names = load_config(location), dict[str, str]()
        if (text := text_part(config)) is not None:
            config, names = text, TEXT_PART
        if location.header is None:
            check_index(source)
        split = _take_prequantized(location, config, names)
        blocks = (
            None
            if location.header is None
            else StoredBlocks(Path(location.source), location.layout)
        )
        arrivals = _arrivals(location, split, blocks, weights)
        if device.type == "cpu":
            find_kept = _find_kept(split, blocks)
            check_memory(config, dtype or torch.bfloat16, weights, find_kept, cache_tokens)
        with nullcontext() if arrivals is None else arrivals.watched():
            model, info = _load_weights(location, config, device, dtype, split, names)
        _check_complete(location, config, info, split)
        if arrivals is not None:
            arrivals.take_head(model)
        draft_layer = _draft_layer(location, model, split) if own_drafts else None
    if location.header is not None and location.layout is None:
        gguf.check_weights(location.header, model, besides)
    if blocks is not None and weights == FROM_FILE:
        blocks.check()
    return LoadedWeights(model.to(device).eval(), arrivals, draft_layer)


def _draft_layer(
    location: Location, model: Any, split: prequantized.Split | None
) -> DraftLayer | None:
    """In main memory; the compiled decoder is all that drafts with it."""
    if model.device.type != "cpu":
        return None
    if location.layout is not None:
        path = Path(location.source)
        return load_draft_layer(model, lazy_parameters(path, location.layout, model.dtype))
    if location.header is not None:
        return None
    if split is None:
        return load_draft_layer(model, tensors_of_files(location.folder))
    return load_draft_layer(model, split.state_dict(model.dtype))


def _arrivals(
    location: Location,
    split: prequantized.Split | None,
    blocks: StoredBlocks | None,
    weights: str | None,
) -> Arrivals | None:
    if weights != FROM_FILE:
        return None if weights is None else Arrivals(weights)
    if blocks is not None:
        return Arrivals(weights, blocks.find)
    if split is None or not split.quantized:
        raise ConfigurationError(
            f"weights={FROM_FILE!r} keeps the numbers of GGUF, GPTQ, AWQ, compressed-tensors and "
            f"MXFP4, and {location.source!r} is none of these: leave weights out, or choose int8 "
            "or int4"
        )
    stored = split.stored()
    return Arrivals(weights, lambda _model: stored)


def _find_kept(split: prequantized.Split | None, blocks: StoredBlocks | None) -> FindKept | None:
    if blocks is not None:
        return blocks.bits
    return None if split is None else lambda _model: split.bits()


def _take_prequantized(
    location: Location, config: Any, names: Mapping[str, str]
) -> prequantized.Split | None:
    """The tensors of a pre-quantized checkpoint, by the model's own names, of which `names` are
    parts; what says so leaves `config`, so that transformers loads a plain model. None:
    transformers reads all of it, or says why not.

    Raises UnsupportedModel for a method that nobody reads, and for numbers without one.
    """
    if location.header is not None:
        return None
    described = getattr(config, "quantization_config", None) or _modelopt_config(location)
    if not isinstance(described, dict):
        _check_plain(location, config)
        return None
    scaling = find_scaling(described)
    layout = prequantized.find_layout(described) if scaling is None else None
    if layout is None and scaling is None:
        method = described.get("quant_method")
        if method is not None and not AutoHfQuantizer.supports_quant_method(described):
            raise unsupported(
                config,
                f"its quantization_config has quant_method={method!r}, which nobody reads: use the "
                "model's plain checkpoint",
            )
        return None
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    try:
        folder = location.folder if Path(location.folder).is_dir() else fetch(location.folder)
    except OSError as error:
        raise ModelNotFound(
            f"no safetensors weights at {location.source!r}: {first_line(error)}"
        ) from error
    with _weight_errors(location.source, config):
        tensors = {_renamed(n, names): tensor for n, tensor in tensors_of_files(folder).items()}
    if layout is not None:
        split = prequantized.split(tensors, layout)
    elif scaling is not None:
        plain, scaled = take_scaled(tensors, scaling)
        split = prequantized.Split(plain, scaled=scaled)
    narrow = {name: str(tensor.dtype) for name, tensor in split.plain.items() if _is_narrow(tensor)}
    _check_narrow(config, narrow)
    return split


def _renamed(name: str, names: Mapping[str, str]) -> str:
    for pattern, own in names.items():
        name = re.sub(pattern, own, name)
    return name


def _modelopt_config(location: Location) -> dict[str, Any] | None:
    """What older versions of ModelOpt write beside config.json."""
    path = stored_file(location.folder, "hf_quant_config.json", download=True)
    if path is None:
        return None
    try:
        described = json.loads(path.read_bytes())["quantization"]
        return {"quant_method": "modelopt", **described} if described.get("quant_algo") else None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnsupportedModel(f"{str(path)!r} cannot be read: {first_line(error)}") from error


def _check_plain(location: Location, config: Any) -> None:
    """Before anything is read: numbers that are no weights without their scales, and many more
    layers than there are, which would be built first."""
    with _weight_errors(location.source, config):
        stored = stored_dtypes(location.folder)
    if numbers := [int(match[1]) for name in stored if (match := _OF_A_LAYER.search(name))]:
        layers = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None) or 0
        there = 1 + max(numbers)
        if layers > 2 * there:  # some families count a few that have no weights of their own
            raise unsupported(
                config, f"its config.json says {layers} layers, and its weights have {there}"
            )
    wide = ("F64", "F32", "F16", "BF16")
    _check_narrow(config, {name: dtype for name, dtype in stored.items() if dtype not in wide})


def _check_narrow(config: Any, narrow: Mapping[str, str]) -> None:
    for name, dtype in sorted(narrow.items()):
        if not _WHOLE_NUMBERS.search(name):
            raise unsupported(
                config,
                f"its tensor {name} is stored as {dtype.removeprefix('torch.')}, and no "
                "quantization_config says how that is read: use the model's plain checkpoint",
            )


def _is_narrow(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or tensor.element_size() == 1


def _load_weights(
    location: Location,
    config: Any,
    device: torch.device,
    dtype: torch.dtype | None,
    split: prequantized.Split | None,
    names: Mapping[str, str],
) -> tuple[Any, dict[str, Any]]:
    """The model, and what transformers says of its loading; `names` as of `_take_prequantized`."""
    loader, folder, arguments = _loader(location, config, dtype, split)
    with quiet():
        # Ahead of its turn a tensor would wait as what it stands for.
        is_plain = split is None and location.header is None
        lazily = gguf.read_lazily() if location.header is not None else nullcontext()
        turns = nullcontext() if is_plain else in_turn()
        with _weight_errors(location.source, config), lazily, turns:
            model, info = loader.from_pretrained(
                folder,
                config=config,
                attn_implementation=IMPLEMENTATION,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                # `_check_complete` names them.
                ignore_mismatched_sizes=True,
                key_mapping=dict(names) or None,
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
    if split is not None or location.layout is not None:
        # Quantized weights are of float16 scales, in which few processors compute.
        dtype = dtype or torch.bfloat16
        # Without a folder AutoModelForCausalLM looks for its files all the same.
        loader = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), AutoModelForCausalLM)
        if location.layout is not None:
            parameters: Any = lazy_parameters(Path(location.source), location.layout, dtype)
        elif split is not None:
            parameters = split.state_dict(dtype)
        return loader, None, {"dtype": dtype, "state_dict": parameters}
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
    except UnsupportedModel:
        raise
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


def _check_complete(
    location: Location, config: Any, info: dict[str, Any], split: prequantized.Split | None
) -> None:
    """Refuse what transformers would fill in with random numbers and a warning, and what it would
    leave out, unless that is known to change nothing."""
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
    if location.header is not None:
        return  # gguf.check_weights compares the tensors of a GGUF file
    unread = [
        name
        for name in sorted(info.get("unexpected_keys") or ())
        if not (_HARMLESS.search(name) or _is_of_later_layers(config, name))
    ]
    # Quantizers write biases of zeros where a model has none.
    biases = [name for name in unread if name.endswith(".bias")]
    if biases:
        values = tensors_of_files(location.folder, biases) if split is None else split.plain
        zero = {name for name in biases if name in values and not values[name].any()}
        unread = [name for name in unread if name not in zero]
    if unread:
        raise unsupported(
            config,
            f"nothing reads {len(unread)} tensors of the checkpoint, {unread[0]} among them: its "
            "config.json is not its own, or its weights are stored in a way that is not known",
        )


def _is_of_later_layers(config: Any, name: str) -> bool:
    """Layers behind the last one that predict further tokens at once: DeepSeek V3's and others'."""
    text = config.get_text_config(decoder=True)
    layers, more = text.num_hidden_layers, getattr(text, "num_nextn_predict_layers", None) or 0
    match = re.match(r"model\.layers\.(\d+)\.", name)
    return match is not None and layers <= int(match[1]) < layers + more


def _has_accelerate() -> bool:
    """transformers loads to a device only with it."""
    return importlib.util.find_spec("accelerate") is not None
