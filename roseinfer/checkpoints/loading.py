"""Finding and loading a checkpoint: a local folder or a hub name with safetensors, or a GGUF file.

No pickle is read, and no code that comes with a model is run.

Errors of transformers and the tokenizers library for a bad checkpoint become ModelNotFound or
UnsupportedModel with one line that says what to do.
"""

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rose.errors import ConfigurationError
from roseinfer.checkpoints import prequantized
from roseinfer.checkpoints.arrivals import Arrivals
from roseinfer.checkpoints.fingerprint import fingerprint
from roseinfer.checkpoints.gguf import blocks
from roseinfer.checkpoints.gguf import checkpoint as gguf
from roseinfer.checkpoints.sources import check_interpreter, gguf_file, model_name, resolve
from roseinfer.checkpoints.target import parse_target
from roseinfer.checkpoints.tokenizer import load_tokenizer
from roseinfer.checkpoints.weights import load_model
from roseinfer.demo_model import MODEL_PATH
from roseinfer.model.quantization import FORMATS, FROM_FILE, format_name
from roseinfer.model.quantized_linears import QuantizedLinears
from roseinfer.model.quantized_weight import QuantizedWeight

_logger = logging.getLogger(__name__)


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
    taken: QuantizedLinears | None = None
    """those that were quantized while they were read"""


def load(
    checkpoint_path: str | Path | None,
    tokenizer_name: str | None,
    device: str | None,
    dtype: str | None,
    weights: str | None = None,
) -> LoadedModel:
    """The model at a path or of a hub name; None is the built-in one. See `InferenceEngine`."""
    check_interpreter()
    if checkpoint_path is None:
        source, name = str(MODEL_PATH), "built-in"
    else:
        source, name = str(checkpoint_path), model_name(str(checkpoint_path))
    source = resolve(source)
    tokenizer_source = resolve(tokenizer_name or source)
    target, precision = parse_target(device, dtype, weights)
    from_gguf = gguf_file(source) or gguf_file(tokenizer_source)
    with gguf.load_once() if from_gguf else nullcontext():
        arrivals = Arrivals(weights) if weights in FORMATS else None
        model, quantized = load_model(source, target, precision, arrivals)
        _logger.info("the weights are read")
        tokenizer = load_tokenizer(tokenizer_source)
        stored = _stored_weights(source, model, quantized) if weights == FROM_FILE else None
    samples, taken = ({}, None) if arrivals is None else (arrivals.samples, arrivals.taken)
    own = fingerprint(source, tokenizer_source, model, format_name(weights), samples)
    return LoadedModel(model, tokenizer, name, own, weights, stored, taken)


def _stored_weights(
    source: str, model: Any, quantized: Mapping[str, QuantizedWeight] | None
) -> Mapping[str, QuantizedWeight]:
    """Raises ConfigurationError for a checkpoint that is not quantized."""
    if (path := gguf_file(source)) is not None:
        return blocks.stored_weights(path, model)
    if quantized is None:
        raise ConfigurationError(
            f"weights={FROM_FILE!r} keeps the numbers of GGUF, GPTQ, AWQ, compressed-tensors and "
            f"MXFP4, and {source!r} is none of these: leave weights out, or choose int8 or int4"
        )
    return prequantized.join_experts(quantized)
