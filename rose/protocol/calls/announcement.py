"""What a worker announces about itself and its model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from rose.protocol.calls.call import Arg, Call, malformed
from rose.protocol.jobs import Priority
from rose.protocol.keys import GROUP, RELEASED, Partition
from rose.protocol.scripts import load

#: A worker that holds no job counts as alive for so long after it was last seen.
ALIVE_S = 15

#: No entry comes after this id. (To XREADGROUP the largest possible id means ">".)
_LAST_ID = "18446744073709551615-0"


def announce(
    partition: Partition,
    consumer: str,
    facts: Mapping[str, Arg],
    *,
    mode: Literal["join", "replace", "keep"],
    slots: int,
    vocabulary: str | None = None,
) -> Call:
    """Say that a worker lives and what it serves, which `submit` reads. `facts` have at least
    `name` and `fingerprint`, which may be empty. `slots`: how many jobs it decodes at once.

    "join" is refused where other workers serve another model; "replace" makes this model the
    queue's, after which "keep" tells the workers of the other one so. `vocabulary`: the key under
    which the model's is kept, if it has one.
    """
    args: list[Arg] = [GROUP, consumer, RELEASED, ALIVE_S * 1000, _LAST_ID, mode, slots]
    args += [arg for fact in facts.items() for arg in fact]
    keys = [partition.model, partition.jobs(Priority.NORMAL), partition.workers]
    return Call(load("announce"), keys if vocabulary is None else [*keys, vocabulary], args)


class Standing(StrEnum):
    """Of a worker in its queue."""

    SERVES = "SERVES"
    REFUSED = "REFUSED"
    """The queue has another model, and living workers."""
    REPLACED = "REPLACED"
    """The queue has changed to another model."""


@dataclass(frozen=True, slots=True)
class Announced:
    standing: Standing
    model: str
    """the queue's"""
    fingerprint: str
    lacks_vocabulary: bool = False
    """It is not in Redis."""


def announced(reply: Sequence[bytes]) -> Announced:
    """Reads the reply to `announce`.

    Raises: MalformedMessage
    """
    try:
        standing, model, fingerprint, lacks = (word.decode() for word in reply)
        return Announced(Standing(standing), model, fingerprint, lacks == "1")
    except ValueError as error:
        raise malformed("announce", error) from None
