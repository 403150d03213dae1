"""What a request asked of a response, as it is kept beside its job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rose.errors import MalformedMessage
from rose_gateway.jobs.job_group import fields_of
from rose_gateway.storage.conversations import Item as Item
from rose_gateway.tools.tools import CallForm


@dataclass(frozen=True, slots=True)
class ResponseParameters:
    """Every field is settled when the job is submitted, so that each replay shows the same."""

    shown: Mapping[str, Any]
    """the fields of the response object that depend on the request alone"""
    items: tuple[Item, ...] = ()
    """the input of this request"""
    history: tuple[Item, ...] = ()
    """items before it that are in no turn of a conversation, the oldest first"""
    form: CallForm = field(default_factory=CallForm)
    """how the output is read"""
    vocabulary: str = ""
    """the key of the vocabulary that names the tokens; "" where there is none"""
    logprobs: bool = False
    grammar: str = ""
    """what the request calls the grammar of its text"""
    styles: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    """how calls are shown, by the names that the model says: fields of `CallStyle`"""
    sealed_for: str | None = None
    """for whom thoughts are shown sealed too; None for nobody"""

    @property
    def background(self) -> bool:
        return bool(self.shown["background"])

    def as_record(self) -> dict[str, Any]:
        """JSON values for `Record.request`."""
        return fields_of(self) | {"form": self.form.as_record()}

    @classmethod
    def from_record(cls, request: Mapping[str, Any]) -> ResponseParameters:
        """Raises: MalformedMessage: `as_record` has not written it."""
        try:
            return cls(
                request["shown"],
                tuple(request["items"]),
                tuple(request["history"]),
                CallForm.from_record(request["form"]),
                request["vocabulary"],
                request["logprobs"],
                request.get("grammar", ""),
                request.get("styles", {}),
                request.get("sealed_for"),
            )
        except (KeyError, TypeError, ValueError):
            raise MalformedMessage("the job's record is not that of a response") from None
