"""A Redis Cluster, for an asyncio client: one `AsyncServer` for each node.

Commands go straight to the node that has their slot. The slot table is refreshed concurrently,
on other connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from rose.settings import QueueSettings
from rose.transport import slots
from rose.transport.async_server import AsyncServer, ConnectionLimit
from rose.transport.connection import address_of, connect_node_async
from rose.transport.failures import BROKER_ERRORS, CONNECTION_LOST, Closable
from rose.transport.multiplexed import SharedAttempt
from rose.transport.pipeline import Command, without_errors
from rose.transport.redis_internals import AsyncConnector, async_connector
from rose.transport.slots import Destination, Exchange, Node, SlotTable

NodeConnector = Callable[[Node], AsyncConnector]


def open_slots_async(settings: QueueSettings, timeout_s: float) -> AsyncSlots:
    """Raises: ConfigurationError"""

    def connector(node: Node) -> AsyncConnector:
        return async_connector(connect_node_async(settings, node, timeout_s).connection_pool)

    nodes = [Node(*node) for node in address_of(settings).nodes]
    connector(nodes[0])  # a misspelt option comes up here
    return AsyncSlots(nodes, connector, timeout_s)


class AsyncSlots:
    """Knows which node to ask, and refreshes it when in doubt."""

    def __init__(self, startup: Sequence[Node], connector: NodeConnector, timeout_s: float) -> None:
        self.table = SlotTable(startup)
        self.connector = connector
        self._timeout_s = timeout_s
        self._learning = SharedAttempt(self._learn)
        self._learned_at = -slots.LEARN_EVERY_S

    async def node_of(self, slot: int | None) -> Node:
        """Waits only if nobody has said yet.

        Raises: CONNECTION_LOST: no node says which one serves the slot.
        """
        node = None if slot is None else self.table.node_of(slot)
        if node is None:
            if not self._learned_lately:
                await self._learning.make()
            node = self.table.any_node() if slot is None else self.table.node_of(slot)
        if node is None:
            raise slots.not_served(slot or 0)
        return node

    def doubt(self) -> None:
        """Start a refresh, and wait for nothing."""
        if not self._learned_lately:
            self._learning.start()

    async def aclose(self) -> None:
        await self._learning.cancel()

    @property
    def _learned_lately(self) -> bool:
        return asyncio.get_running_loop().time() - self._learned_at < slots.LEARN_EVERY_S

    async def _learn(self) -> None:
        """Ask a few nodes at once, and believe the first that answers."""
        nodes, errors = self.table.whom_to_ask(), list[Exception]()
        for start in range(0, len(nodes), slots.ASKED_AT_ONCE):
            asked = [
                asyncio.create_task(self._ask(node))
                for node in nodes[start : start + slots.ASKED_AT_ONCE]
            ]
            try:
                for answer in asyncio.as_completed(asked):
                    try:
                        self.table.learn(*await answer)
                    except BROKER_ERRORS as error:
                        errors.append(error)
                    else:
                        self._learned_at = asyncio.get_running_loop().time()
                        return
            finally:
                for task in asked:
                    task.cancel()
                await asyncio.gather(*asked, return_exceptions=True)
        raise slots.worst(errors)

    async def _ask(self, node: Node) -> tuple[Any, Node]:
        server = AsyncServer(self.connector(node), self._timeout_s, ConnectionLimit(1))
        try:
            (reply,) = await server.exchange([slots.CLUSTER_SLOTS])
        finally:
            await server.aclose()
        return reply, node


class AsyncCluster(Closable):
    sharded = True

    def __init__(
        self, known: AsyncSlots, timeout_s: float, limit: ConnectionLimit, *, blocking: bool = False
    ) -> None:
        """`timeout_s`, `limit`, `blocking`: as of each node's `AsyncServer`."""
        self._slots = known
        self._timeout_s = timeout_s
        self._limit = limit
        self._blocking = blocking
        self._servers: dict[Node, AsyncServer] = {}

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """In one round trip to each node, all at once."""
        self._check_open()
        places = map(slots.slot_of, commands)
        exchange = Exchange(commands, [await self._slots.node_of(slot) for slot in places])
        for _ in range(1 + slots.MAX_REDIRECTIONS):
            trips = exchange.trips()
            if len(trips) == 1:  # nearly always
                await self._make(exchange, *trips[0])
            else:
                await asyncio.gather(*(self._make(exchange, *trip) for trip in trips))
            if exchange.doubtful:
                self._slots.doubt()
            if not exchange.redirect(self._slots.table):
                break
        return without_errors(exchange.replies)

    async def aclose(self) -> None:
        self._closed = True
        await self._slots.aclose()
        for server in self._servers.values():
            await server.aclose()

    async def _make(
        self, exchange: Exchange, destination: Destination, commands: Sequence[Command]
    ) -> None:
        server = self._server(destination.node)
        try:
            exchange.answer(destination, await server.round_trip(commands))
        except CONNECTION_LOST:
            self._slots.doubt()  # it may have a successor
            raise

    def _server(self, node: Node) -> AsyncServer:
        server = self._servers.get(node)
        if server is None:
            connector = self._slots.connector(node)
            server = AsyncServer(connector, self._timeout_s, self._limit, blocking=self._blocking)
            self._servers[node] = server
        return server
