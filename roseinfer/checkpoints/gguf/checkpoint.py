"""A GGUF file as transformers loads it, and what it leaves out, which is refused."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import GgufConfig, modeling_gguf_pytorch_utils

from rose.errors import UnsupportedModel
from roseinfer.checkpoints.gguf.header import ANSWER_ROWS, Header
from roseinfer.checkpoints.gguf.layouts import Layout
from roseinfer.checkpoints.gguf.metadata import check_keys, ends_of_text
from roseinfer.checkpoints.lazy_tensor import LazyTensor
from roseinfer.model.limits import text_config
from roseinfer.patching import patched

_NAME = "model.gguf"

#: Weights become plain ones: the compiled decoder packs them in its own way.
MODEL_ARGUMENTS: dict[str, Any] = {"quantization_config": GgufConfig(dequantize=True)}

#: What llama.cpp takes where a file says nothing.
_USUAL_THETA = 10_000.0

_SIZES = {
    "attention.key_length": "head_dim",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}


@contextmanager
def alone(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A folder with nothing but a link to the file, and the argument that names it to transformers.

    In the file's own folder transformers would prefer the tokenizer.json of another model.
    """
    with TemporaryDirectory(prefix="rose-gguf-") as folder:
        Path(folder, _NAME).symlink_to(path.resolve())
        yield folder, {"gguf_file": _NAME}


@contextmanager
def load_once() -> Iterator[None]:
    """While it lasts, transformers' loader is quiet and does its slow work once.

    It parses the file, vocabulary and all, for the configuration, the weights and the tokenizer,
    and makes its table of names for each module of the model: more than half of the time. Its
    switch for progress bars does not reach the one of GGUF files.
    """
    import gguf  # an extra

    bar = partial(modeling_gguf_pytorch_utils.tqdm, disable=True)
    make_reader, make_names = gguf.GGUFReader, gguf.get_tensor_name_map

    @cache
    def reader(path: Path) -> Any:
        return make_reader(path)

    with (
        patched(modeling_gguf_pytorch_utils, "tqdm", bar),
        patched(gguf, "GGUFReader", lambda path: reader(Path(path).resolve())),
        patched(gguf, "get_tensor_name_map", cache(make_names)),
    ):
        yield


@contextmanager
def read_lazily() -> Iterator[None]:
    """While it lasts, transformers' loader dequantizes a tensor when it sets the parameter, not all
    of them before it sets the first."""
    load = modeling_gguf_pytorch_utils.load_gguf_checkpoint

    def load_lazily(path: str, return_tensors: bool = False, **more: Any) -> Any:
        parsed = load(path)
        if return_tensors:
            tensors = _lazy_tensors(Path(path), parsed["config"], **more)
            if tensors is None:
                return load(path, return_tensors=True, **more)
            parsed["tensors"] = tensors
        return parsed

    with patched(modeling_gguf_pytorch_utils, "load_gguf_checkpoint", load_lazily):
        yield


def _lazy_tensors(
    path: Path, config: Any, model_to_load: Any, torch_dtype: torch.dtype | None
) -> dict[str, LazyTensor] | None:
    """By the parameters' names; None where transformers does not say which tensor is of which
    parameter."""
    import gguf

    reader, own = gguf.GGUFReader(path), modeling_gguf_pytorch_utils
    architecture = str(reader.fields["general.architecture"].contents())
    processor = own.TENSOR_PROCESSORS.get(architecture, own.TensorProcessor)(config=config)
    names = own.get_gguf_hf_weights_map(model_to_load, processor)

    def read(parameter: str, tensors: list[Any]) -> Tensor:
        made: dict[str, Tensor] = {}  # of experts the processor puts several together here
        for tensor in tensors:
            result = processor.process(
                weights=gguf.dequantize(tensor.data, tensor.tensor_type),
                name=tensor.name,
                tensor_key_mapping=names,
                parsed_parameters={"config": config, "tensors": made},
            )
            if result.name is not None:
                made[parameter] = torch.from_numpy(result.weights.copy())
        return made[parameter].to(torch_dtype)

    parameters: dict[str, list[Any]] = {}
    for tensor in reader.tensors:
        if tensor.name == ANSWER_ROWS:  # no parameter's; check_weights says whether it may be there
            continue
        # Its table has those of experts without the ending.
        parameter = names.get(tensor.name) or names.get(tensor.name.removesuffix(".weight"))
        if parameter is None:
            return None
        parameters.setdefault(parameter, []).append(tensor)
    return {
        name: LazyTensor(partial(read, name, own), sum(int(each.n_elements) for each in own))
        for name, own in parameters.items()
    }


def check_config(header: Header, config: Any) -> None:
    """Raises UnsupportedModel where `config` is not what the file says: transformers reads the
    common keys of each architecture and passes over the rest."""
    check_keys(header, config)
    theta = header.value("rope.freq_base")
    known = list(_thetas(config))
    if theta is not None and known and not any(_same(theta, other) for other in known):
        raise _refusal(header, f"its rope.freq_base of {theta:g} is read as {known[0]:g}")
    unusual = [other for other in known if not _same(other, _USUAL_THETA)]
    if theta is None and unusual:
        raise _missing(header, "rope.freq_base", unusual[0])
    window = header.value("attention.sliding_window")
    context = header.value("context_length") or 0
    own = getattr(config, "sliding_window", None)
    if window and window < context and own != window:
        raise _refusal(header, f"its sliding window of {window} is not read")
    if window is None and own and own < context and header.architecture != "gemma2":
        raise _missing(header, "attention.sliding_window", own)


def config_of_layout(header: Header, layout: Layout) -> Any:
    """Raises UnsupportedModel for a key of the file that is not in it."""
    layout.config.eos_token_id = ends_of_text(header) or None
    check_keys(header, layout.config, layout.read)
    return layout.config


def complete_config(header: Header, config: Any) -> None:
    """Sizes of experts and heads, which transformers leaves as its class has them, and the ends."""
    for key, name in _SIZES.items():
        size = header.value(key)
        if size is not None and hasattr(config, name):
            setattr(config, name, size)
    config.eos_token_id = ends_of_text(header) or None


def check_weights(header: Header, model: Any, besides: Collection[str]) -> None:
    """Raises UnsupportedModel unless every number in the file, those of `besides` aside, is in the
    model, which may have divided or joined tensors: what transformers has no place for it leaves
    out."""
    given = sum(count for name, count in header.elements.items() if name not in besides)
    kept = model.state_dict().keys()
    taken = sum(parameter.numel() for parameter in model.parameters())
    taken += sum(buffer.numel() for name, buffer in model.named_buffers() if name in kept)
    if given != taken:
        raise _refusal(
            header,
            f"its {len(header.elements)} tensors have {given:,} numbers, and a "
            f"{text_config(model).model_type} of this size has {taken:,}",
        )


def _refusal(header: Header, reason: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"this GGUF file of architecture {header.architecture!r} cannot be loaded: {reason}; use "
        "the model's folder of safetensors instead"
    )


def _missing(header: Header, name: str, default: float) -> UnsupportedModel:
    key = f"{header.architecture}.{name}"
    return _refusal(header, f"it has no {key}, for which {default:g} would be taken")


def _thetas(config: Any) -> Iterator[float]:
    """Base frequencies of the rotary embeddings; several where layers differ."""
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if (theta := parameters.get("rope_theta")) is not None:
            yield float(theta)


def _same(one: float, other: float) -> bool:
    """Files have single precision."""
    return abs(one - other) <= 1e-6 * max(abs(one), abs(other))
