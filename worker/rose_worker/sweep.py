"""Finds entries that are in no pending list, and jobs without an entry, which no worker would
find.

roseinfer creates neither, but a foreign command (XTRIM, XDEL, XGROUP DELCONSUMER), a restored
backup or a failover may. The worker that reads the queue's gauges checks a portion each time.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from rose.errors import MalformedMessage
from rose.protocol import FailedEvent, Partition
from rose.protocol.calls import Append
from rose_worker.broker import Broker

log = logging.getLogger("rose.sweep")

#: A job with an entry is not checked again for this time. Most jobs end sooner, so the sweep of
#: a healthy queue reads almost nothing.
_AGAIN_S = 60.0


class EntryLost(MalformedMessage):
    code = "entry_lost"


@dataclass(slots=True, eq=False)
class Sweep:
    _broker: Broker
    again_s: float = _AGAIN_S
    _positions: dict[Partition, Sequence[bytes]] = field(default_factory=dict, init=False)

    async def run(self, partition: Partition) -> None:
        """Raises: RedisError, MalformedMessage"""
        positions = self._positions.get(partition, [])
        swept = await self._broker.queue.sweep(partition, positions, self.again_s)
        self._positions[partition] = swept.positions
        if swept.released:
            log.warning(
                "%d entries were delivered and owned by nobody: they are free again", swept.released
            )
        error = EntryLost(
            "its entry is gone from the queue's stream, where somebody has trimmed or deleted it, "
            "or Redis has lost it: submit the job again"
        )
        ends = [
            Append(lease, tokens, end=FailedEvent.of(error, tokens))
            for lease, tokens in zip(swept.lost, swept.tokens, strict=True)
        ]
        for item, outcome in zip(ends, await self._broker.publish(partition, ends), strict=True):
            job_id = item.lease.job_id
            # Otherwise it has grown meanwhile; the next sweep decides.
            if outcome == "OK":
                log.warning("job %s has no entry any more: failed", job_id, extra={"job": job_id})
