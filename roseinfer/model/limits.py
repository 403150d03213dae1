"""Limits of a model, from its configuration."""

import logging
from collections.abc import Iterator
from typing import Any

from rose.errors import ConfigurationError, UnsupportedModel

_logger = logging.getLogger(__name__)

# RoPE types whose frequencies change when the longest sequence of a batch passes the original
# context: beyond it, a request's result would depend on the rest of its batch.
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")

_LEAST_CONTEXT = 2


def text_config(model: Any) -> Any:
    """The configuration of the language model, also inside a multimodal one."""
    return model.config.get_text_config(decoder=True)


def model_type(model: Any) -> str:
    return str(getattr(model.config, "model_type", type(model).__name__))


def context_length(model: Any, max_context: int | None) -> int:
    """Tokens in a request, prompt and output together.

    Raises ConfigurationError for a `max_context` above what the model can do, UnsupportedModel if
    neither says how much that is.
    """
    known = position_limits(model)
    if known and min(known) < _LEAST_CONTEXT:
        raise UnsupportedModel(
            f"{model_type(model)}: a context of {min(known)} has no room for a prompt and a token"
        )
    if not known and max_context is None:
        raise UnsupportedModel(
            f"{model_type(model)}: its configuration gives no context length: set max_context "
            "(ROSE_MAX_CONTEXT)"
        )
    if max_context is None:
        return min(known)
    if max_context < _LEAST_CONTEXT or (known and max_context > min(known)):
        upper = f" and {min(known)}, the context of this model" if known else ""
        raise ConfigurationError(
            f"max_context={max_context} must lie between {_LEAST_CONTEXT}{upper}"
        )
    return max_context


def position_limits(model: Any) -> list[int]:
    """Lengths that a sequence must not exceed, as far as the configuration says."""
    config = text_config(model)
    limits = [getattr(config, "max_position_embeddings", None), *length_limits(config)]
    return [int(limit) for limit in limits if limit]


def length_limits(config: Any) -> Iterator[int]:
    """Lengths up to which length-dependent RoPE types give the same result in any batch."""
    rope = getattr(config, "rope_parameters", None) or {}
    per_layer_type = [value for value in rope.values() if isinstance(value, dict)]
    for parameters in per_layer_type or [rope]:
        if parameters.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
            own = getattr(config, "original_max_position_embeddings", None)
            for limit in (parameters.get("original_max_position_embeddings"), own):
                if limit:
                    yield int(limit)


def vocab_size(model: Any) -> int:
    """Ids the model can read: the rows of its input embedding."""
    return int(model.get_input_embeddings().num_embeddings)


def eos_token_ids(model: Any, tokenizer: Any | None, vocabulary: int) -> frozenset[int]:
    """Every id that ends a text, after the generation config, the config and the tokenizer.

    A negative one is how a configuration says that there is none; one outside of the `vocabulary`
    never comes. Raises UnsupportedModel where one of them is no id.
    """
    sources = [
        getattr(getattr(model, "generation_config", None), "eos_token_id", None),
        getattr(text_config(model), "eos_token_id", None),
        getattr(tokenizer, "eos_token_id", None),
    ]
    ids: list[Any] = []
    for source in sources:
        if source is not None:
            ids += source if isinstance(source, list | tuple) else [source]
    if wrong := [token_id for token_id in ids if type(token_id) is not int]:
        raise UnsupportedModel(
            f"{model_type(model)}: its eos_token_id {wrong[0]!r} is no token id: mend config.json "
            "and generation_config.json"
        )
    outside = sorted({token_id for token_id in ids if token_id >= vocabulary})
    if outside:
        _logger.warning(
            "%s: its eos_token_id %d ends no text, for the ids of its embedding run from 0 to %d",
            model_type(model),
            outside[0],
            vocabulary - 1,
        )
    return frozenset(token_id for token_id in ids if 0 <= token_id < vocabulary)
