"""Two thousand subscribers in one process, all of their jobs running at once."""

import asyncio
import signal
import time
from dataclasses import dataclass

import redis.asyncio

from benchmarks.board import Board, at_least
from benchmarks.queue.ours import Listener, Ours, contiguous, open_client, requests, start_worker
from benchmarks.queue.plain import connect
from benchmarks.queue.stage import fresh_redis
from benchmarks.runner import AsyncCase

SERVED = "subscribers served exactly once"
CONNECTIONS = "their connections"
SECONDS = "s, first to last token"
EVENTS = "events delivered/s"
_POLL_S = 0.1
#: All have subscribed when no new channel has appeared for this long.
_QUIET_S = 1.0


@dataclass(frozen=True, slots=True)
class Subscribers(AsyncCase):
    count: int
    new_tokens: int
    title: str = "Concurrent subscribers in one process"

    async def measure(self, board: Board, turn: int) -> None:  # noqa: ARG002 - one contender
        with (
            fresh_redis() as broker,
            start_worker(broker.url, max_batch_size=self.count) as worker,
        ):
            worker.wait_ready()
            async with connect(broker.url) as observer, open_client(broker.url) as client:
                others = await _connections(observer)
                worker.signal(signal.SIGSTOP)
                jobs = await client.submit_many(requests(self.count, self.new_tokens))
                listeners = [Listener(job) for job in jobs]
                listening = [asyncio.create_task(one.run()) for one in listeners]
                await _all_subscribed(observer)
                connections = await _connections(observer) - others
                worker.signal(signal.SIGCONT)
                await asyncio.gather(*listening)
        board.add(Ours.name, self._figures(listeners, connections))

    def judge(self, board: Board) -> None:
        board.check_every((SERVED, Ours.name), at_least(self.count))

    def _figures(self, listeners: list[Listener], connections: int) -> dict[str, float]:
        served = sum(
            contiguous(event for event, _ in one.events) == self.new_tokens for one in listeners
        )
        times = [received_s for one in listeners for _, received_s in one.events]
        seconds = max(times) - min(times)
        return {
            SERVED: served,
            CONNECTIONS: connections,
            SECONDS: seconds,
            EVENTS: len(times) / seconds,
        }


async def _all_subscribed(observer: redis.asyncio.Redis) -> None:
    channels, since = -1, time.monotonic()
    while time.monotonic() < since + _QUIET_S:
        now = len(await observer.pubsub_channels())
        if now != channels:
            channels, since = now, time.monotonic()
        await asyncio.sleep(_POLL_S)


async def _connections(observer: redis.asyncio.Redis) -> int:
    clients: int = (await observer.info("clients"))["connected_clients"]
    return clients
