"""What the workers of a queue announce about their model: one record, the hash `model`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedModel:
    """What another producer of the protocol omits has its default."""

    name: str
    fingerprint: str = ""
    """of weights, tokenizer and dtype; "" if it is not known"""
    context_tokens: int | None = None
    max_bytes_per_token: int | None = None
    """the maximum number of bytes of prompt text that a token can stand for; None if not certain"""
    chat: bool = True
    """False where it is certain that it has no chat template"""
    tool_format: str = ""
    """how its chat template writes calls of functions, such as "hermes"; "" if it does not, or in a
    way that is not known"""
    reasoning_format: str = ""
    """how it writes thoughts, such as "think"; "" as before"""
    template_variables: tuple[str, ...] | None = None
    """names of the variables that its chat template reads beside messages and tools, such as
    enable_thinking; None if that is not known"""
    engine: str = ""
    """rose, vllm or null; "" if it is not known"""
    dtype: str = ""
    adapters: tuple[str, ...] = ()
    """names of the LoRA adapters that a job may ask for"""
    task: str = "generate"
    """generate, embed or score: what jobs it takes"""
    dimensions: int | None = None
    """how many numbers a vector of it has, or how many scores a pair of texts; None of one that
    generates"""

    @property
    def facts(self) -> dict[str, str]:
        """As they stand in Redis."""
        return {name: _text(getattr(self, name)) for name in MODEL_FIELDS}


#: The fields of the hash, in the order in which `read_model` has them.
MODEL_FIELDS = tuple(field.name for field in fields(AnnouncedModel))


def read_model(values: Sequence[Any]) -> dict[str, Any]:
    """The attributes of an AnnouncedModel, from the reply to HMGET of MODEL_FIELDS. Empty before
    the first worker came.

    Raises: ValueError: somebody else has written there.
    """
    by_name = dict(zip(MODEL_FIELDS, values, strict=True))
    if by_name["name"] is None:
        return {}
    return {
        name: _READ.get(name, str)(value.decode())
        for name, value in by_name.items()
        if value is not None
    }


def _text(value: str | bool | int | tuple[str, ...] | None) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _number(text: str) -> int | None:
    return int(text) if text else None


_READ: Mapping[str, Any] = {
    "context_tokens": _number,
    "max_bytes_per_token": _number,
    "chat": lambda text: text != "0",
    "dimensions": _number,
    "template_variables": lambda text: tuple(text.split()),
    "adapters": lambda text: tuple(text.split()),
}
