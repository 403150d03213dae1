"""What transformers says: kept off our users' terminals, and its errors in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import transformers
from transformers.utils import logging as hf_logging

from rose.errors import UnsupportedModel
from roseinfer.model.attention import IMPLEMENTATION
from roseinfer.model.attention_layers import BYPASSED


def first_line(error: BaseException) -> str:
    if isinstance(error, KeyError):
        if error.args == (IMPLEMENTATION,):
            return BYPASSED
        return f"transformers looked for {error} and found nothing"
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def unsupported(config: Any, reason: str) -> UnsupportedModel:
    model_type = getattr(config, "model_type", "unknown")
    return UnsupportedModel(f"model type {model_type!r} cannot be loaded: {reason}")


@contextmanager
def quiet() -> Iterator[None]:
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
