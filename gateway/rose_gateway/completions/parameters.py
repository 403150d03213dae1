"""What a request asked of a completion, as it is kept beside its job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rose.errors import MalformedMessage
from rose_gateway.jobs.record import fields_of


@dataclass(frozen=True, slots=True)
class CompletionParameters:
    """All that the answer depends on beside the log."""

    choices_of_a_prompt: int = 1
    echoes: tuple[str, ...] = ()
    """of each prompt, what its texts begin with"""
    logprobs: int | None = None
    writes: bool = True
    """false: `max_tokens` is 0. The job generates a token all the same, which nobody is shown"""
    include_usage: bool = False
    stream: bool = False
    vocabulary: str = ""
    """the key of the vocabulary that names the tokens"""
    grammar: str = ""
    """what the request calls the grammar of its text"""

    def echo(self, choice: int) -> str:
        return self.echoes[choice // self.choices_of_a_prompt] if self.echoes else ""

    @property
    def scores_echoes(self) -> bool:
        """Whether the prompts come with log-probabilities, and so with the first tokens."""
        return bool(self.echoes) and self.logprobs is not None

    def as_record(self) -> dict[str, Any]:
        """JSON values for `Record.request`."""
        return fields_of(self)

    @classmethod
    def from_record(cls, request: Mapping[str, Any]) -> CompletionParameters:
        """Raises: MalformedMessage: `as_record` has not written it."""
        try:
            return cls(**{**request, "echoes": tuple(request["echoes"])})
        except (KeyError, TypeError, ValueError):
            raise MalformedMessage("the job's record is not that of a completion") from None
