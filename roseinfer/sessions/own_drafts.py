"""A session's side of the drafts that its model's own head makes: see `native/draft_head.py`.

The head reads, for each token, the hidden states behind the token before. It sees at most the last
WINDOW of them, and a session keeps those that it has not read: most of a prompt is never read, and
where drafts do not pay for a while, what is missed is not caught up with. Then, and where a prefix
came from the cache, the head begins anew. That changes which drafts it makes and nothing else.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.sessions.acceptance import AcceptanceRate, probabilities

WINDOW = 256
MAX_OWN_DRAFTS = 4  # of a session in a step: each takes a pass of the head

_PRIOR = 0.7
#: A rate at which drafts no longer pay comes back to the prior in some thousands of tokens.
_RETURN = 0.001


class OwnDrafts:
    """`length` of a session's rows are in the head's cache, at the numbers from 0 on, in the part
    of it that is called `slot`."""

    def __init__(self, slots: list[int]) -> None:
        """`slots` are the head's free ones: one is taken when the first draft is made."""
        self.slot: int | None = None
        self.length = 0
        self.drafted = 0
        """of the step that was planned last"""
        self._slots = slots
        self._rows: list[Tensor] = []  # not read yet: of the tokens from `_first` to `_end`
        self._first = self._end = 0
        self._rates = [AcceptanceRate(_PRIOR) for _ in range(MAX_OWN_DRAFTS)]

    def rows_wanted(self, end: int, known: int, count: int) -> int:
        """Of a chunk of `count` tokens up to `end`, in a session that has `known`."""
        return min(max(end - (known - WINDOW), 0), count)

    def take(self, hidden: Tensor, first: int) -> None:
        """The hidden states [n, H] behind the tokens from `first` on."""
        if not len(hidden):
            return
        if first != self._end:
            self._rows, self._first, self.length = [], first, 0
        self._rows.append(hidden)
        self._end = first + len(hidden)
        while self._end - self._first - len(self._rows[0]) >= WINDOW:
            self._first += len(self._rows.pop(0))
            self.length = 0

    def is_ready(self, known: int) -> bool:
        """Whether it has what the head must read before it drafts behind `known` tokens."""
        if not self._rows or self._end != known - 1:
            return False
        if self.slot is None and self._slots:
            self.slot, self.length = self._slots.pop(), 0
        return self.slot is not None

    @property
    def unread(self) -> int:
        """Tokens that the head has not read."""
        return self._end - self._first

    def read(self) -> tuple[int, Tensor]:
        """The first token behind which the head reads, and the rows [n, H], which then are read."""
        rows = torch.cat(self._rows)
        if len(rows) > WINDOW:
            rows, self.length = rows[-WINDOW:], 0
        first = self._end - len(rows)
        self._rows, self._first = [], self._end
        self.length += len(rows)
        return first, rows

    def acceptance(self, count: int, least: float) -> list[float]:
        """How likely the next 1, 2, ..., `count` drafts are all accepted, down to `least`."""
        return probabilities((rate.value for rate in self._rates[:count]), least)

    def record(self, accepted: int) -> None:
        """So many of the last step's drafts were right."""
        for number in range(min(accepted + 1, self.drafted)):
            self._rates[number].record(number < accepted)
        self.drafted = 0

    def skip(self) -> None:
        """A token came without a draft."""
        self.drafted = 0
        for rate in self._rates:
            rate.drift(_PRIOR, _RETURN)

    def release(self) -> None:
        """Forget all that the head has read. May be repeated."""
        if self.slot is not None:
            self._slots.append(self.slot)
            self.slot = None
        self._rows, self._first, self._end, self.length = [], 0, 0, 0
