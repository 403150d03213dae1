"""A limit of the tokens that a request may think: beyond it, the end of its thought is written.

The tokens so far say whether that is due, so it is the same in any batch, and for whoever resumes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from rose.formats.parts import Parser

#: A character that is not whole, and what may become the end of the thought, are waited for; but
#: not longer than for so many tokens.
_PATIENCE = 8


class _Text(Protocol):
    """As roseinfer.text has it."""

    @property
    def is_whole(self) -> bool: ...

    def push(self, token_id: int) -> str: ...


class ThoughtBudget:
    def __init__(
        self,
        tokens: int,
        parser: Parser,
        stream: _Text,
        ends: Sequence[Sequence[int]],
        opening: str = "",
    ) -> None:
        """`tokens`: how many may be thought. `ends`: the token ids that end the first thought that
        takes too long, the second one and so on, the last of them for all others. `opening`: the
        prompt ends with it, which opens a thought."""
        self._left = tokens
        self._parser, self._stream = parser, stream
        self._ends = deque(ends)
        self._due: deque[int] = deque()
        parser.feed(opening)
        self._decide()

    @property
    def forced(self) -> int | None:
        """The only token that may come next; None where any may."""
        return self._due[0] if self._due else None

    def add(self, token_id: int) -> None:
        """Take the next token."""
        thought = self._parser.thinking
        self._parser.feed(self._stream.push(token_id))
        self._left -= thought or self._parser.thinking
        if self._due and self._due.popleft() != token_id:
            self._due.clear()
        if not self._due:
            self._decide()

    def _decide(self) -> None:
        if not self._parser.thinking or self._left > 0:
            return
        held = getattr(self._parser, "buffer", "").strip()
        if (held or not self._stream.is_whole) and self._left > -_PATIENCE:
            return
        self._due.extend(self._ends[0])
        if len(self._ends) > 1:
            self._ends.popleft()
