"""Calls Redis every few seconds: to see whether it answers, and to say that this worker lives.

One worker also reads the queue's gauges, which would be the same from any worker. It holds the key
`reader`, which is a lease; the others only ask for that key. So a hundred workers cost Redis forty
small calls a second, and one reading of the queue in five seconds.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from rose.errors import MalformedMessage
from rose.protocol.calls import ALIVE_S
from rose.transport import BROKER_ERRORS
from rose_worker.broker import Broker
from rose_worker.metrics import Metrics

log = logging.getLogger("rose.watch")

#: Two calls in a row may fail before a live worker is missing from the queue's status.
_INTERVAL_S = ALIVE_S / 3
#: A worker that is not ready calls more often, so that `/readyz` does not lag.
_RETRY_S = 0.5
#: Another worker follows a killed reader after at most this and an interval.
_LEASE_S = 3 * _INTERVAL_S


@dataclass(slots=True, eq=False)
class Watch:
    _broker: Broker
    _metrics: Metrics
    interval_s: float = _INTERVAL_S
    lease_s: float = _LEASE_S
    _problem: str | None = field(default=None, init=False)

    def check(self) -> str | None:
        """What keeps this worker from being ready."""
        return self._problem

    async def run(self) -> None:
        while True:
            await self._look()
            again_s = self.interval_s if self._problem is None else _RETRY_S
            await asyncio.sleep(min(again_s, self.interval_s))

    async def _look(self) -> None:
        try:
            await self._broker.report_alive()
            if await self._broker.elect_reader(self.lease_s):
                await self._read()
            else:
                self._metrics.forget_queue()
            self._problem = None
        except (*BROKER_ERRORS, MalformedMessage) as error:
            self._metrics.redis_errors["watch"].inc()
            self._metrics.forget_queue()
            self._problem = f"Redis: {error}"
        self._metrics.ready.set(self._problem is None)

    async def _read(self) -> None:
        status = await self._broker.queue_status()
        oldest_ms = await self._broker.oldest_waiting_ms()
        self._metrics.observe_queue(status, oldest_ms, await self._broker.lost_workers())
        await self._broker.forget_dead_consumers()
