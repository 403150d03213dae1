"""A Redis Cluster, for a blocking client: one pool of connections for each node.

Commands go straight to the node that has their slot. The thread whose call has failed learns which
one that is now, on connections of its own; the other threads continue with what they know.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import redis

from rose.settings import QueueSettings
from rose.transport import slots
from rose.transport.blocking_pool import BlockingPool
from rose.transport.connection import address_of, connect_node
from rose.transport.failures import BROKER_ERRORS, CONNECTION_LOST, Closable
from rose.transport.pipeline import Command, pack, without_errors
from rose.transport.redis_internals import connector, round_trips
from rose.transport.slots import Exchange, Node, SlotTable

#: Clients of one node; the timeout is of connections and replies.
NodeClient = Callable[[Node, float], redis.Redis]

#: A node that is well answers within this. If none does, all are asked with the full timeout.
_FAST_S = 0.5


def open_slots(settings: QueueSettings, timeout_s: float) -> Slots:
    """Raises: ConfigurationError"""
    nodes = [Node(*node) for node in address_of(settings).nodes]
    connect_node(settings, nodes[0], timeout_s)  # a misspelt option comes up here
    return Slots(nodes, partial(connect_node, settings), timeout_s)


class Slots:
    """Thread-safe. Knows which node to ask, and refreshes it when in doubt."""

    def __init__(self, startup: Sequence[Node], client: NodeClient, timeout_s: float) -> None:
        self.table = SlotTable(startup)
        self._client = client
        self._timeout_s = timeout_s
        self._learning = threading.Lock()
        self._learned_at = -slots.LEARN_EVERY_S
        self._clients: dict[Node, redis.Redis] = {}

    def node_of(self, slot: int | None) -> Node:
        """Waits only if nobody has said yet.

        Raises: CONNECTION_LOST: no node says which one serves the slot.
        """
        node = None if slot is None else self.table.node_of(slot)
        if node is None:
            with self._learning:
                if not self._learned_lately:
                    self._learn()
            node = self.table.any_node() if slot is None else self.table.node_of(slot)
        if node is None:
            raise slots.not_served(slot or 0)
        return node

    def client_of(self, node: Node) -> redis.Redis:
        client = self._clients.get(node)
        if client is None:
            client = self._clients.setdefault(node, self._client(node, self._timeout_s))
        return client

    def doubt(self) -> None:
        """Refresh, unless another thread does it. Raises nothing: the old table stays."""
        if self._learned_lately or not self._learning.acquire(blocking=False):
            return
        try:
            self._learn()
        except BROKER_ERRORS:
            return  # the caller has met one already, and comes again
        finally:
            self._learning.release()

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    @property
    def _learned_lately(self) -> bool:
        return time.monotonic() - self._learned_at < slots.LEARN_EVERY_S

    def _learn(self) -> None:
        errors: list[Exception] = []
        for timeout_s in (min(_FAST_S, self._timeout_s), self._timeout_s):
            for node in self.table.whom_to_ask():
                try:
                    self.table.learn(self._ask(node, timeout_s), node)
                except BROKER_ERRORS as error:
                    errors.append(error)
                else:
                    self._learned_at = time.monotonic()
                    return
        raise slots.worst(errors)

    def _ask(self, node: Node, timeout_s: float) -> Any:
        with self._client(node, timeout_s) as client:
            packed = pack(slots.CLUSTER_SLOTS)
            ((reply,),) = round_trips([(client.connection_pool, packed, 1)])
        return without_errors([reply])[0]


class Cluster(Closable):
    """Thread-safe. Asks for the nodes at the first exchange."""

    sharded = True

    def __init__(self, known: Slots, *, blocking: bool = False) -> None:
        self._slots = known
        self._blocking = blocking
        self._pools: dict[Node, BlockingPool] = {}

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """In one round trip to each node, all at once."""
        self._check_open()
        places = map(slots.slot_of, commands)
        exchange = Exchange(commands, [self._slots.node_of(slot) for slot in places])
        for _ in range(1 + slots.MAX_REDIRECTIONS):
            self._make(exchange)
            if exchange.doubtful:
                self._slots.doubt()
            if not exchange.redirect(self._slots.table):
                break
        return without_errors(exchange.replies)

    def close(self) -> None:
        self._closed = True
        for pool in self._pools.values():
            pool.close()
        self._slots.close()

    def _make(self, exchange: Exchange) -> None:
        trips = exchange.trips()
        pools = [self._pool(to.node) for to, _ in trips]
        packed = [(b"".join(map(pack, commands)), len(commands)) for _, commands in trips]
        try:
            with ExitStack() as stack:
                # In one order for all threads: nobody waits for one who waits for him.
                for node in sorted({to.node for to, _ in trips}):
                    stack.enter_context(self._pool(node).turns)
                outcomes = round_trips(
                    [(pool, *words) for pool, words in zip(pools, packed, strict=True)]
                )
        except CONNECTION_LOST:
            self._slots.doubt()  # it may have a successor
            raise
        for (destination, _), replies in zip(trips, outcomes, strict=True):
            exchange.answer(destination, replies)

    def _pool(self, node: Node) -> BlockingPool:
        pool = self._pools.get(node)
        if pool is None:
            made = connector(self._slots.client_of(node).connection_pool)
            pool = self._pools.setdefault(node, BlockingPool(made, blocking=self._blocking))
        return pool
