"""Webhooks as Redis has them: what owes an event, and the events that are to be delivered.

Before a job is in the queue, and together with a batch, an entry is written that says that it owes
an event. Any gateway that finds its end takes the entry out and files the event for each endpoint,
in one script. Any gateway delivers what is filed, under a lease. So nothing depends on a gateway
that lives on, nor on the worker that ends a job.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rose import transport
from rose.protocol.calls import Arg, Call
from rose.protocol.keys import BulkKeys
from rose_gateway.scripts import own_script
from rose_gateway.storage.webhook_endpoints import (
    EventType,
    WebhookEndpoint,
    WebhookEndpoints,
    event_keys,
)

#: Between two looks at what takes very long.
_MAX_PAUSE_MS = 10_000
#: Dead events that are kept of an endpoint; the oldest go.
MAX_DEAD = 10_000
_PAGE_SIZE = 500


class Owing(NamedTuple):
    """A job or a batch that owes an event."""

    queue: str | None
    """of a job; None for a batch"""
    entry: bytes
    id: str
    owner: str
    """the id of an API key; "" where the gateway is open to all"""
    age_ms: int
    """since it was noted"""


class WebhookEvent(NamedTuple):
    id: str
    body: str

    @classmethod
    def of(cls, event_type: EventType, object_id: str, created_at: int) -> "WebhookEvent":
        """The same, whichever gateway makes it. `created_at`: Unix seconds."""
        digest = hashlib.sha256(f"{event_type} {object_id}".encode()).hexdigest()
        event = {
            "id": f"evt_{digest[:32]}",
            "object": "event",
            "created_at": created_at,
            "type": event_type,
            "data": {"id": object_id},
        }
        return cls(f"evt_{digest[:32]}", json.dumps(event, separators=(",", ":")))


@dataclass(frozen=True, slots=True)
class Failures:
    """What became of an event so far."""

    count: int = 0
    since_ms: int = 0
    """when the first attempt failed"""
    reason: str = ""
    """why the last one failed"""

    def encode(self) -> str:
        return json.dumps([self.count, self.since_ms, self.reason])

    @classmethod
    def decode(cls, raw: bytes | None) -> "Failures":
        """What nobody here has written counts as none."""
        try:
            count, since_ms, reason = json.loads(raw or b"")
            return cls(int(count), int(since_ms), str(reason))
        except (ValueError, TypeError):
            return cls()


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event that this gateway is to deliver now."""

    endpoint: WebhookEndpoint
    event: WebhookEvent
    failures: Failures
    now_ms: int
    """when it was claimed, by Redis' clock"""
    lease_ms: int
    """until when it is nobody else's"""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Of one endpoint."""

    undelivered: int
    dead: int


@dataclass(frozen=True, slots=True)
class DeadEvent:
    endpoint_id: str
    event: WebhookEvent
    failures: Failures
    at_ms: int


class WebhookRepository:
    """Belongs to one event loop. Every method raises BrokerUnavailable."""

    def __init__(self, redis: transport.AsyncRedisClient) -> None:
        self._redis = redis
        self.endpoints = WebhookEndpoints(redis)

    async def is_owed(self, owner: str) -> bool:
        """Whether somebody is to be told of this owner's jobs."""
        return any(endpoint.is_of(owner) for endpoint in await self.endpoints.known())

    async def watch(self, queue: str, job_id: str, owner: str) -> Owing:
        """Note that this job, which is about to be enqueued, owes an event. Raises: RedisFull"""
        call = Call(_script("watch"), [BulkKeys.webhook_jobs(queue)], [job_id, owner])
        return Owing(queue, await self._run(call), job_id, owner, 0)

    async def forget(self, owing: Owing) -> None:
        """It owes nothing: it is not there."""
        with transport.broker_errors():
            await self._redis.execute("ZREM", _set_of(owing.queue), owing.entry)

    async def look(self, queues: Sequence[str]) -> Sequence[Owing]:
        """Jobs of these queues, and batches, whose end is to be looked for now."""
        sources = [*queues, None]
        keys = [_set_of(queue) for queue in sources]
        now, *entries = await self._run(Call(_script("look"), keys, [_PAGE_SIZE, _MAX_PAUSE_MS]))
        owing: list[Owing] = []
        for queue, found in zip(sources, entries, strict=True):
            for entry in found:
                since, _, rest = entry.decode().partition(" ")
                object_id, _, owner = rest.partition(" ")
                owing.append(Owing(queue, entry, object_id, owner, int(now) - int(since)))
        return owing

    async def settle(
        self, owing: Owing, event: WebhookEvent, endpoints: Sequence[WebhookEndpoint]
    ) -> None:
        """Its event is filed for these endpoints, once."""
        keys: list[str | bytes] = [_set_of(owing.queue), BulkKeys.WEBHOOKS]
        for endpoint in endpoints:
            keys += [BulkKeys.webhook_due(endpoint.id), BulkKeys.webhook_events(endpoint.id)]
        args: list[Arg] = [owing.entry, event.id, event.body, *(one.id for one in endpoints)]
        await self._run(Call(_script("settle"), keys, args))

    async def claim(
        self, room: Sequence[tuple[WebhookEndpoint, int]], *, lease_s: float, longest_s: float
    ) -> tuple[Sequence[Delivery], Sequence[Backlog]]:
        """Events that are due, so many of each endpoint at most, and how many it has.
        `longest_s`: no pause and no lease is longer."""
        keys = [key for endpoint, _ in room for key in event_keys(endpoint.id)]
        args: list[Arg] = [round(lease_s * 1000), round(longest_s * 1000)]
        args += [most for _, most in room]
        now, lease_ms, *replies = await self._run(Call(_script("claim"), keys, args))
        deliveries, backlogs = [], []
        for (endpoint, _), (undelivered, dead, flat) in zip(room, replies, strict=True):
            backlogs.append(Backlog(undelivered, dead))
            for raw_id, body, failures in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
                event = WebhookEvent(raw_id.decode(), body.decode())
                before = Failures.decode(failures)
                deliveries.append(Delivery(endpoint, event, before, int(now), int(lease_ms)))
        return deliveries, backlogs

    async def delivered(self, delivery: Delivery) -> None:
        keys = event_keys(delivery.endpoint.id)
        await self._run(Call(_script("report"), keys, [delivery.event.id]))

    async def failed(
        self, delivery: Delivery, failures: Failures, retry_after_s: float | None
    ) -> None:
        """Unless another has it by now. `retry_after_s`: None to give it up."""
        pause: Arg = "" if retry_after_s is None else round(retry_after_s * 1000)
        args: list[Arg] = [delivery.event.id, delivery.lease_ms, failures.encode(), pause, MAX_DEAD]
        await self._run(Call(_script("report"), event_keys(delivery.endpoint.id), args))

    async def backlog(self, endpoint_id: str) -> Backlog:
        due, _, _, dead = event_keys(endpoint_id)
        with transport.broker_errors():
            counts = await self._redis.exchange([("ZCARD", due), ("ZCARD", dead)])
        return Backlog(*map(int, counts))

    async def last_failure(self, endpoint_id: str) -> Failures | None:
        """Of the event that has waited longest for its next attempt; None where all is well."""
        due, _, failures, _ = event_keys(endpoint_id)
        with transport.broker_errors():
            ids = await self._redis.execute("ZRANGE", due, 0, 0)
            if not ids:
                return None
            (raw,) = await self._redis.execute("HMGET", failures, *ids)
        return Failures.decode(raw) if raw else None

    async def dead(self, endpoint_id: str, limit: int) -> Sequence[DeadEvent]:
        """The newest first."""
        _, events, failures, dead = event_keys(endpoint_id)
        with transport.broker_errors():
            flat = await self._redis.execute("ZREVRANGE", dead, 0, limit - 1, "WITHSCORES")
            ids = flat[::2]
            if not ids:
                return []
            bodies, reasons = await self._redis.exchange(
                [("HMGET", events, *ids), ("HMGET", failures, *ids)]
            )
        return [
            DeadEvent(
                endpoint_id,
                WebhookEvent(raw_id.decode(), (body or b"{}").decode()),
                Failures.decode(reason),
                int(float(score)),
            )
            for raw_id, score, body, reason in zip(ids, flat[1::2], bodies, reasons, strict=True)
        ]

    async def resend(self, endpoint_id: str, event_ids: Sequence[str]) -> int:
        """How many of these events were dead, and are due now."""
        due, _, failures, dead = event_keys(endpoint_id)
        resent = 0
        for start in range(0, len(event_ids), _PAGE_SIZE):
            page = list(event_ids[start : start + _PAGE_SIZE])
            resent += int(await self._run(Call(_script("resend"), [due, failures, dead], page)))
        return resent

    async def _run(self, call: Call) -> Any:
        with transport.broker_errors():
            return await self._redis.run(call)


def _set_of(queue: str | None) -> str:
    return BulkKeys.WEBHOOK_BATCHES if queue is None else BulkKeys.webhook_jobs(queue)


def _script(name: str) -> Any:
    return own_script(__package__, f"webhook_{name}")
