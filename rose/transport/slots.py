"""Which node of a cluster serves which command: what both forms of a cluster know and share.

Nothing here does I/O. Whoever finds that a node does not answer, or does not serve what it did,
asks others beside its work (`async_cluster`, `cluster`), so a silent node holds up nobody else.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    SlotNotCoveredError,
)

from rose.transport.pipeline import Command

#: Where the first key stands, if it is not the first word behind the command.
_KEY_AT = {"EVAL": 3, "EVALSHA": 3, "XGROUP": 2, "XINFO": 2}

#: Nodes that are asked together. Any of them may be silent.
ASKED_AT_ONCE = 3

#: Nodes are not asked again before this, however many calls fail.
LEARN_EVERY_S = 1.0

#: A slot that moves while its command is under way takes one redirection, or an ASK and one.
MAX_REDIRECTIONS = 4

CLUSTER_SLOTS: Command = ("CLUSTER", "SLOTS")


class Node(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Destination(NamedTuple):
    node: Node
    asking: bool = False
    """The slot is on its way there, and this command may come before it."""


class SlotTable:
    """Each method is one step for other threads, too."""

    def __init__(self, startup: Sequence[Node]) -> None:
        self._startup = startup
        self._nodes: list[Node] = []
        """all that were named, replicas too, which may be primaries by now"""
        self._primaries: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS

    def learn(self, reply: Sequence[Any], asked: Node) -> None:
        """From a reply to CLUSTER SLOTS."""
        nodes: dict[Node, None] = {}
        primaries: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, *serving in reply:
            named = [_named(host, port, asked) for host, port, *_ in serving]
            nodes |= dict.fromkeys(named)
            primaries[first : last + 1] = [named[0]] * (last + 1 - first)
        self._nodes, self._primaries = list(nodes), primaries

    def node_of(self, slot: int) -> Node | None:
        return self._primaries[slot]

    def any_node(self) -> Node:
        return next((node for node in self._primaries if node is not None), self._startup[0])

    def moved(self, error: MovedError, asked: Node | None = None) -> Node:
        """Returns where to. `asked`: who said so; the last to serve the slot if not given."""
        former = asked or self._primaries[error.slot_id] or self._startup[0]
        node = _named(error.host, error.port, former)
        self._primaries[error.slot_id] = node
        return node

    def whom_to_ask(self) -> list[Node]:
        """In a random order: each time others are asked first."""
        nodes = list(dict.fromkeys([*self._nodes, *self._startup]))
        return random.sample(nodes, len(nodes))


class Known(Protocol):
    """What is known of a cluster, and learned anew."""

    @property
    def table(self) -> SlotTable: ...

    def doubt(self) -> None: ...


def doubt(known: Known | None, error: Exception) -> None:
    """After `error` a channel's node may be another one. `known` None: it is no cluster."""
    if known is not None:
        if isinstance(error, MovedError):
            known.table.moved(error)
        known.doubt()


def slot_of(command: Command) -> int | None:
    """None: the command has no key, so any node may run it."""
    verb = str(command[0])
    reads = verb in ("XREAD", "XREADGROUP")
    at = command.index("STREAMS") + 1 if reads else _KEY_AT.get(verb, 1)
    return slot_of_key(str(command[at])) if at < len(command) else None


def slot_of_key(key: str) -> int:
    return key_slot(key.encode())


def not_served(slot: int) -> SlotNotCoveredError:
    return SlotNotCoveredError(f"no node of the cluster serves slot {slot}")


class Exchange:
    """The commands of one exchange: where each goes, and what came back."""

    def __init__(self, commands: Sequence[Command], nodes: Sequence[Node]) -> None:
        self.replies: list[Any] = [None] * len(commands)
        self._commands = commands
        self._due: dict[Destination, list[int]] = {}
        for number, node in enumerate(nodes):
            self._due.setdefault(Destination(node), []).append(number)

    def trips(self) -> list[tuple[Destination, list[Command]]]:
        """What to send to each node."""
        return [
            (destination, list(self._words(destination, numbers)))
            for destination, numbers in self._due.items()
        ]

    def answer(self, destination: Destination, replies: Sequence[Any]) -> None:
        of_commands = replies[1::2] if destination.asking else replies
        for number, reply in zip(self._due[destination], of_commands, strict=True):
            self.replies[number] = reply

    def redirect(self, table: SlotTable) -> bool:
        """Whether there are trips to make again, to other nodes."""
        due, self._due = self._due, {}
        for destination, numbers in due.items():
            for number in numbers:
                other = _redirection(table, self.replies[number], destination.node)
                if other is not None:
                    self._due.setdefault(other, []).append(number)
        return bool(self._due)

    @property
    def doubtful(self) -> bool:
        """Whether a reply says that the table is wrong, or soon will be."""
        signs = (MovedError, ClusterDownError, ReadOnlyError)
        return any(isinstance(reply, signs) for reply in self.replies)

    def _words(self, destination: Destination, numbers: Sequence[int]) -> Iterator[Command]:
        for number in numbers:
            if destination.asking:
                yield ("ASKING",)
            yield self._commands[number]


def worst(errors: Sequence[Exception]) -> Exception:
    """What to tell if no node says what it serves: a wrong password will not get better."""
    for error in errors:
        if isinstance(error, AuthenticationError):
            return error
    return errors[0] if errors else redis.ConnectionError("no node of the cluster answers")


def _redirection(table: SlotTable, reply: Any, asked: Node) -> Destination | None:
    """Where to send a command again that was answered so."""
    if isinstance(reply, MovedError):
        return Destination(table.moved(reply, asked))
    if isinstance(reply, AskError):
        return Destination(_named(reply.host, reply.port, asked), asking=True)
    return None


def _named(host: Any, port: Any, asked: Node) -> Node:
    """A node that does not know its own address leaves it out, and is the one that was asked."""
    name = host.decode() if isinstance(host, bytes) else host
    return Node(name if name and name != "?" else asked.host, int(port))
