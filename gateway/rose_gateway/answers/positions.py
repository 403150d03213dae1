"""How far a reader of several choices has come: what `id:` lines say and `Last-Event-ID` brings.

The position in a choice is the id of the last entry of its log that was delivered: `12-0` after
twelve tokens, `12-1` after the end. `12-2` means that the usage was delivered too, which follows
when all choices have ended, and `12-3` that nothing follows: an `EventSource` that asks again is
sent away. Positions of several choices stand beside each other: `12-1,7-0`.
"""

from __future__ import annotations

import re

from rose.errors import InvalidCursor
from rose.protocol import Event, FinishedEvent
from rose_gateway.requests.bad_request import BadRequest

_POSITION = re.compile(r"(\d{1,10})-([0-3])")

_ENDED, _USAGE_SENT, _DONE = 1, 2, 3

#: Tokens, and a rank: 1 after the end of the choice, 2 after the usage, 3 after the stream.
_Position = tuple[int, int]


class Positions:
    """Of each choice: what the reader has."""

    def __init__(self, choices: int) -> None:
        self._positions: list[_Position] = [(0, 0)] * choices

    def __str__(self) -> str:
        return ",".join([f"{tokens}-{rank}" for tokens, rank in self._positions])

    @property
    def all_ended(self) -> bool:
        return all(rank >= _ENDED for _, rank in self._positions)

    @property
    def all_usage_sent(self) -> bool:
        return all(rank >= _USAGE_SENT for _, rank in self._positions)

    @property
    def all_done(self) -> bool:
        return all(rank >= _DONE for _, rank in self._positions)

    def passes(self, choice: int, event: Event) -> bool:
        """Moves past the event, unless the reader has it.

        A failover may have forgotten tokens that the reader has. They come again, or the job is
        cancelled or fails before.

        Raises:
            InvalidCursor: the answer is another than the one that the reader has a part of.
        """
        tokens, rank = self._positions[choice]
        if rank >= _ENDED or (event.cursor <= tokens and not event.is_terminal):
            return False
        if event.index < tokens and isinstance(event, FinishedEvent):
            raise self._not_there(tokens, f"the answer ends after {event.index} tokens")
        if event.index < tokens and not event.is_terminal:
            raise self._not_there(
                tokens,
                f"it lies inside of tokens {event.index} to {event.cursor - 1}, which an older "
                "worker wrote together",
            )
        reached = max(tokens, event.cursor)
        self._positions[choice] = (reached, _ENDED if event.is_terminal else 0)
        return True

    def usage_sent(self) -> None:
        """The usage was delivered."""
        self._reach(_USAGE_SENT)

    def done(self) -> None:
        """Nothing follows."""
        self._reach(_DONE)

    def _not_there(self, tokens: int, what: str) -> InvalidCursor:
        return InvalidCursor(
            f"last_event_id: {tokens} tokens of a choice cannot be gone on from: {what}: follow it "
            "from the beginning, without last_event_id"
        )

    def _reach(self, rank: int) -> None:
        self._positions = [(tokens, rank) for tokens, _ in self._positions]

    @classmethod
    def read(cls, text: str, choices: int, param: str = "last_event_id") -> Positions:
        """From a `Last-Event-ID`.

        Raises: BadRequest
        """
        parts = text.split(",")
        matches = [_POSITION.fullmatch(part.strip()) for part in parts]
        if len(parts) != choices or not all(matches):
            raise BadRequest(
                f"{param}: {text[:80]!r} must be the id of an event of this stream, such as "
                f"{Positions(choices)}",
                param,
            )
        positions = cls(choices)
        positions._positions = [(int(match[1]), int(match[2])) for match in matches if match]
        return positions
