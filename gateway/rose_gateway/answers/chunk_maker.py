"""What the answers of chat and plain completions have in common: which they are, what they have
used, and the frame of a stream's chunks."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rose_gateway.answers.usage import UsageCounter
from rose_gateway.json_text import compact


class AnswerHeader(NamedTuple):
    """Which answer it is."""

    job_ids: Sequence[str]
    """of each choice"""
    model: str
    created: int
    """Unix seconds"""

    def fields(self, prefix: str, kind: str) -> dict[str, Any]:
        return {
            "id": f"{prefix}-{self.job_ids[0]}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


class ChunkMaker(UsageCounter):
    """Makes the data of a stream's events, without their ids."""

    def __init__(
        self, fields: Mapping[str, Any], choices_of_a_prompt: int, *, include_usage: bool
    ) -> None:
        """`fields`: those that all chunks have."""
        super().__init__(choices_of_a_prompt)
        self._include_usage = include_usage
        self._prefix = compact(fields)[:-1] + ',"choices":['
        self._suffix = '],"usage":null}' if include_usage else "]}"

    def usage_chunk(self) -> str | None:
        """After the ends of all choices, if it was asked for."""
        if not self._include_usage:
            return None
        return f'{self._prefix}],"usage":{compact(self.usage())}}}'

    def _chunk(self, *choices: dict[str, Any]) -> str:
        return self._prefix + compact(choices)[1:-1] + self._suffix
