"""What a request asked of a chat completion, as it is kept beside its job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rose.errors import MalformedMessage
from rose_gateway.jobs.record import fields_of
from rose_gateway.tools.tools import CallForm


@dataclass(frozen=True, slots=True)
class ChatParameters:
    """All that the answer depends on beside the log."""

    form: CallForm = field(default_factory=CallForm)
    logprobs: bool = False
    include_usage: bool = False
    stream: bool = False
    tier: str = "default"
    metadata: Mapping[str, str] = field(default_factory=dict)
    vocabulary: str = ""
    """the key of the vocabulary that names the tokens"""
    grammar: str = ""
    """what the request calls the grammar of its text"""

    def as_record(self) -> dict[str, Any]:
        """JSON values for `Record.request`."""
        return fields_of(self) | {"form": self.form.as_record()}

    @classmethod
    def from_record(cls, request: Mapping[str, Any]) -> ChatParameters:
        """Raises: MalformedMessage: `as_record` has not written it."""
        try:
            return cls(**{**request, "form": CallForm.from_record(request["form"])})
        except (KeyError, TypeError, ValueError):
            raise MalformedMessage("the job's record is not that of a chat completion") from None
