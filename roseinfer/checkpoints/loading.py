"""Finding and loading a checkpoint: a local folder or a hub name with safetensors, or a GGUF file.

No pickle is read, and no code that comes with a model is run.

Errors of transformers and the tokenizers library for a bad checkpoint become ModelNotFound or
UnsupportedModel with one line that says what to do.
"""

import logging
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roseinfer.checkpoints.draft_layer import DraftLayer
from roseinfer.checkpoints.fingerprint import fingerprint
from roseinfer.checkpoints.gguf import checkpoint as gguf
from roseinfer.checkpoints.sources import check_interpreter, gguf_file, model_name, resolve
from roseinfer.checkpoints.target import parse_target
from roseinfer.checkpoints.tokenizer import load_tokenizer
from roseinfer.checkpoints.weights import load_model
from roseinfer.demo_model import MODEL_PATH
from roseinfer.model.quantization import format_name
from roseinfer.model.quantized_linears import QuantizedLinears

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
    taken: QuantizedLinears | None = None
    """those that were brought to it while they were read"""
    draft_layer: DraftLayer | None = None
    """the model's own, for further tokens"""


def load(
    checkpoint_path: str | Path | None,
    tokenizer_name: str | None,
    device: str | None,
    dtype: str | None,
    weights: str | None = None,
    cache_tokens: int | None = None,
    own_drafts: bool = False,
) -> LoadedModel:
    """The model at a path or of a hub name; None is the built-in one. See `InferenceEngine`.

    `cache_tokens` will be in a KV cache beside it, if that is known. With `own_drafts` a layer for
    further tokens comes along, if the checkpoint has one.
    """
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
        model, arrivals, draft_layer = load_model(
            source, target, precision, weights, cache_tokens, own_drafts=own_drafts
        )
        _logger.info("the weights are read")
        tokenizer = load_tokenizer(tokenizer_source)
    samples, taken = ({}, None) if arrivals is None else (arrivals.samples, arrivals.taken)
    own = fingerprint(source, tokenizer_source, model, format_name(weights), samples)
    return LoadedModel(model, tokenizer, name, own, weights, taken, draft_layer)
