"""Conversations: the items of each response once, however many responses follow it.

A response that others go on from becomes a turn of its conversation. They claim it: a turn stays
until the response and all that claim its turn are deleted, or until nobody has read the
conversation for a day more than results are kept.
"""

import json
import secrets
from typing import Any, NamedTuple

from rose import transport
from rose.errors import JobNotFound, JobTooLarge
from rose.protocol.calls import Arg, Call
from rose.protocol.keys import conversation_key
from rose_gateway.scripts import own_script

#: What the items of a conversation may take, as JSON.
MAX_BYTES = 1024 * 1024
_SLACK_S = 86_400

Item = dict[str, Any]
"""an item of a conversation, as the API shows it"""


class Link(NamedTuple):
    """How a response hangs on the one before it."""

    conversation: str
    """the id of its first response's job"""
    turn: str
    """that of the response before"""
    claim: str
    """drawn for this link"""


class Turn(NamedTuple):
    """A response that another one goes on from."""

    id: str
    """of its job"""
    link: Link | None
    """its own"""
    items: tuple[Item, ...]
    """its input and output"""


class Turns(NamedTuple):
    items: tuple[Item, ...] = ()
    """the oldest first"""
    size: int = 0
    """bytes"""


def check_size(size: int) -> None:
    """`size`: of a request with its conversation. Raises: JobTooLarge"""
    if size > MAX_BYTES:
        raise JobTooLarge(
            f"the request takes {size} bytes to be kept with its conversation, the limit is "
            f"{MAX_BYTES}: begin a new conversation or send less"
        )


class Conversations:
    """Belongs to one event loop. Every method raises BrokerUnavailable."""

    def __init__(self, redis: transport.AsyncRedisClient, *, result_ttl_s: int) -> None:
        self._redis = redis
        self._ttl_ms = (result_ttl_s + _SLACK_S) * 1000

    async def before(self, link: Link | None) -> Turns:
        """The turns before a response. Raises: JobNotFound: they have expired."""
        if link is None:
            return Turns()
        reply = await self._run("read", link.conversation, link.turn, MAX_BYTES, self._ttl_ms)
        if isinstance(reply, int):
            check_size(reply)
        if not isinstance(reply, list):
            raise JobNotFound(f"resp_{reply.decode()}, a turn of this conversation, has expired")
        items = [item for raw in reversed(reply) for item in json.loads(raw.split(b" ", 2)[2])]
        return Turns(tuple(items), sum(map(len, reply)))

    async def claim(self, turn: Turn) -> Link:
        """The link of a response that goes on from this one."""
        conversation, before, its_claim = turn.link or (turn.id, "", "")
        claim = secrets.token_hex(8)
        entry = f"{before} {its_claim} {json.dumps(turn.items, separators=(',', ':'))}"
        await self._run("claim", conversation, turn.id, entry, claim, self._ttl_ms)
        return Link(conversation, turn.id, claim)

    async def forget(self, response: str, link: Link | None) -> None:
        """A response was deleted, or has not come to be. A repeat does no harm."""
        conversation, turn, claim = link or (response, "", "")
        await self._run("forget", conversation, response, turn, claim)

    async def _run(self, name: str, conversation: str, *args: Arg) -> Any:
        script = own_script(__package__, f"conversation_{name}")
        with transport.broker_errors():
            return await self._redis.run(Call(script, [conversation_key(conversation)], args))
