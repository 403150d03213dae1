"""Tells webhooks of what has ended. Every gateway does it for all: none has events of its own."""

import asyncio
import logging
import random
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

from rose.errors import JobNotFound, MalformedMessage, RoseError
from rose.protocol import TERMINAL_STATUSES
from rose_gateway.access.authentication import Caller, RequestContext, in_request
from rose_gateway.responses import rendering
from rose_gateway.services import Services
from rose_gateway.settings import networks_of
from rose_gateway.storage.webhook_endpoints import EVENT_TYPES, EventType, WebhookEndpoint
from rose_gateway.storage.webhook_repository import Delivery, Failures, Owing, WebhookEvent
from rose_gateway.webhooks.addresses import AddressPolicy
from rose_gateway.webhooks.sending import NotDelivered, WebhookSender

log = logging.getLogger("rose.gateway")

#: Between two looks at what has ended, and at what is due.
_POLL_S = 1.0
#: A job that was noted and is nowhere: it was never enqueued, was deleted, or has expired.
_GIVEN_UP_MS = 600_000
#: Ends that are looked up at a time.
_LOOKUPS = 16
#: Deliveries of this gateway at a time: to one endpoint, so that one that hangs holds up no other,
#: and to all.
_MAX_TO_ONE = 8
_MAX_TO_ALL = 128
#: Each pause is so much longer than the one before it, give or take a quarter.
_GROWTH = 3.0
_JITTER = 0.25
#: For giving claims back when the gateway ends.
_RELEASE_S = 2.0


class WebhookRunner:
    """Belongs to one event loop."""

    def __init__(self, services: Services) -> None:
        settings = services.settings
        self._services = services
        self._repository = services.webhooks
        self._sender = WebhookSender(
            AddressPolicy(networks_of(settings.webhook_networks)), settings.webhook_timeout_s
        )
        self._lease_s = 2 * settings.webhook_timeout_s + 1.0
        self._deliveries: set[asyncio.Task[None]] = set()
        self._to: Counter[str] = Counter()
        """deliveries under way, by the id of the endpoint"""
        self._news = asyncio.Event()
        """there may be more to deliver at once"""
        self._looked_at = float("-inf")

    async def run(self) -> None:
        """Until it is cancelled; then what it was delivering is left to others."""
        try:
            while True:
                self._news.clear()
                try:
                    await self._turn()
                except RoseError as error:
                    log.debug("webhooks were not looked after: %s", error)
                except Exception:
                    log.exception("webhooks were not looked after")
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await self._news.wait()
        finally:
            for delivery in self._deliveries:
                delivery.cancel()
            await asyncio.gather(*self._deliveries, return_exceptions=True)

    async def _turn(self) -> None:
        """Raises: BrokerUnavailable"""
        endpoints = await self._repository.endpoints.known()
        if not endpoints:
            self._services.metrics.webhook_backlog(0, 0)
            return
        now = time.monotonic()
        if now - self._looked_at >= _POLL_S:
            self._looked_at = now
            await self._look(endpoints)
        await self._claim(endpoints)

    async def _look(self, endpoints: Sequence[WebhookEndpoint]) -> None:
        owing = await self._repository.look(self._services.settings.queue_names)
        slots = asyncio.Semaphore(_LOOKUPS)

        async def look_at(one: Owing) -> None:
            async with slots:
                try:
                    await self._settle(one, endpoints)
                except RoseError as error:  # it is looked at again
                    log.debug("the end of %s was not looked up: %s", one.id, error)
                except Exception:
                    log.exception("the end of %s was not looked up", one.id)

        await asyncio.gather(*map(look_at, owing))

    async def _settle(self, owing: Owing, endpoints: Sequence[WebhookEndpoint]) -> None:
        """File its event, if it has ended. Raises: RoseError"""
        try:
            event_type, event = await self._event_of(owing)
        except _NotEnded:
            return
        except (JobNotFound, MalformedMessage):
            if owing.age_ms > _GIVEN_UP_MS:
                log.warning("no event for %s, which was deleted or has expired", owing.id)
                await self._repository.forget(owing)
            return
        wanted = [
            endpoint
            for endpoint in endpoints
            if endpoint.is_of(owing.owner) and event_type in endpoint.event_types
        ]
        await self._repository.settle(owing, event, wanted)

    async def _event_of(self, owing: Owing) -> tuple[EventType, WebhookEvent]:
        """Raises: _NotEnded, JobNotFound, MalformedMessage, BrokerUnavailable"""
        if owing.queue is not None:
            return await self._end_of_response(owing.queue, owing)
        batch = await self._services.batches.find(owing.id)
        if batch is None:
            raise JobNotFound(f"no batch {owing.id}")
        if not batch.ended:
            raise _NotEnded
        return _event("batch", batch.status, batch.id, batch.times.get(f"{batch.status}_at", 0))

    async def _end_of_response(self, queue: str, owing: Owing) -> tuple[EventType, WebhookEvent]:
        services = self._services
        job = services.clients[queue].job(owing.id)
        if (await job.status()).status not in TERMINAL_STATUSES:
            raise _NotEnded
        with in_request(RequestContext(f"req_{secrets.token_hex(16)}")):
            group = await services.jobs.find(Caller(owing.owner), owing.id, "response")
            # As whoever retrieves it will see it.
            response = await rendering.ended(group, await rendering.events_of(services, group))
        return _event(
            "response", response["status"], response["id"], (group.state.ended_ms or 0) // 1000
        )

    async def _claim(self, endpoints: Sequence[WebhookEndpoint]) -> None:
        settings = self._services.settings
        left = _MAX_TO_ALL - len(self._deliveries)
        room = []
        for endpoint in random.sample(endpoints, len(endpoints)):  # nobody is always the last
            share = max(0, min(left, _MAX_TO_ONE - self._to[endpoint.id]))
            left -= share
            room.append((endpoint, share))
        longest_s = max(self._lease_s, settings.webhook_max_pause_s * (1 + _JITTER))
        deliveries, backlogs = await self._repository.claim(
            room, lease_s=self._lease_s, longest_s=2 * longest_s
        )
        self._services.metrics.webhook_backlog(
            sum(one.undelivered for one in backlogs), sum(one.dead for one in backlogs)
        )
        for delivery in deliveries:
            self._begin(delivery)

    def _begin(self, delivery: Delivery) -> None:
        task = asyncio.create_task(self._deliver(delivery))
        self._deliveries.add(task)
        self._to[delivery.endpoint.id] += 1

        def ended(task: asyncio.Task[None]) -> None:
            self._deliveries.discard(task)
            self._to[delivery.endpoint.id] -= 1
            self._news.set()

        task.add_done_callback(ended)

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            await self._attempt(delivery)
        except asyncio.CancelledError:
            with suppress(RoseError, TimeoutError):  # its lease ends by itself
                async with asyncio.timeout(_RELEASE_S):
                    await self._repository.failed(delivery, delivery.failures, 0.0)
            raise
        except RoseError as error:  # it is delivered once more
            log.debug("event %s: %s", delivery.event.id, error)
        except Exception:
            log.exception("event %s was not delivered", delivery.event.id)

    async def _attempt(self, delivery: Delivery) -> None:
        """Raises: BrokerUnavailable"""
        metrics, endpoint_id = self._services.metrics, delivery.endpoint.id
        try:
            await self._sender.send(delivery.endpoint, delivery.event)
        except NotDelivered as error:
            failures = _one_more(delivery, str(error))
            pause_s = None if error.is_final else self._pause_s(failures, delivery, error)
            metrics.webhook_attempted("failed" if pause_s is not None else "dead")
            log.warning(
                "event %s was not delivered to %s, attempt %d: %s; %s",
                delivery.event.id,
                endpoint_id,
                failures.count,
                error,
                "given up: see rose webhooks dead"
                if pause_s is None
                else f"next attempt in {pause_s:.0f} s",
            )
            await self._repository.failed(delivery, failures, pause_s)
        else:
            metrics.webhook_attempted("delivered")
            await self._repository.delivered(delivery)

    def _pause_s(self, failures: Failures, delivery: Delivery, error: NotDelivered) -> float | None:
        """Until the next attempt; None where it has failed for too long."""
        settings = self._services.settings
        if delivery.now_ms - failures.since_ms >= settings.webhook_give_up_s * 1000:
            return None
        most = settings.webhook_max_pause_s
        pause = min(most, settings.webhook_pause_s * _GROWTH ** min(failures.count - 1, 30))
        pause = max(pause, min(most, error.retry_after_s or 0.0))
        return pause * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311


class _NotEnded(Exception):
    pass


def _event(
    kind: str, status: str, object_id: str, created_at: int
) -> tuple[EventType, WebhookEvent]:
    (event_type,) = (one for one in EVENT_TYPES if one == f"{kind}.{status}")
    return event_type, WebhookEvent.of(event_type, object_id, created_at)


def _one_more(delivery: Delivery, reason: str) -> Failures:
    before = delivery.failures
    return Failures(before.count + 1, before.since_ms or delivery.now_ms, reason)


@asynccontextmanager
async def told_webhooks(services: Services) -> AsyncGenerator[None, None]:
    """Meanwhile this gateway delivers events, if it is to."""
    if not services.settings.send_webhooks:
        yield
        return
    running = asyncio.create_task(WebhookRunner(services).run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
