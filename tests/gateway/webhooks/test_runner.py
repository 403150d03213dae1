"""Who is told of what, whatever dies in between."""

import asyncio
import json
from typing import Any

import pytest
import redis

from rose.errors import QueueFull
from rose.protocol.keys import BulkKeys
from rose_cli.local.broker import EmbeddedBroker
from rose_gateway.access.authentication import Caller, RequestContext, in_request
from rose_gateway.answers.endpoint import IncomingRequest
from rose_gateway.jobs.job_client import JobGroup
from rose_gateway.responses.schema import CreateResponse
from rose_gateway.responses.submission import make_submission
from rose_gateway.services import Services
from rose_gateway.storage.batch_repository import BatchParameters
from rose_gateway.webhooks.runner import WebhookRunner, told_webhooks
from tests.gateway.webhooks.conftest import OpenServices
from tests.support import scripted
from tests.support.bench import until
from tests.support.echo import serving
from tests.support.webhook_receiver import Received, Receiver


async def submitted(
    services: Services, owner: str = "", idempotency_key: str | None = None, **fields: Any
) -> JobGroup:
    """A background response that is incomplete in the end."""
    body = {"model": "null", "input": "ab", "max_output_tokens": 3, "background": True, **fields}
    with in_request(RequestContext("req_1")):
        incoming = IncomingRequest(
            services=services,
            caller=Caller(owner),
            body=body,
            sha256="0",
            idempotency_key=idempotency_key,
        )
        made = await make_submission(incoming, incoming.parsed(CreateResponse))
        return await services.jobs.submit(Caller(owner), made)


async def batch_of(services: Services) -> str:
    now_s = await services.batches.now_ms() // 1000
    parameters = BatchParameters("", "/v1/responses", "file-none", "24h", now_s, now_s + 86_400)
    owes_event = await services.webhooks.is_owed("")
    return (await services.batches.create(parameters, owes_event=owes_event)).id


def told(receiver: Receiver, secret: str) -> list[tuple[str, str]]:
    """Types and ids, of the events that were signed by this secret. Raises for others."""
    events = [one.verified(secret) for one in receiver.received]
    return sorted((event["type"], event["data"]["id"]) for event in events)


def left(raw: redis.Redis) -> set[bytes]:
    return set(raw.scan_iter("rose:gateway:{bulk}:webhook*"))


async def test_each_end_has_its_event(
    own_broker: EmbeddedBroker, queue: str, open_services: OpenServices, receiver: Receiver
) -> None:
    with serving("w", own_broker.url, queue=queue, **scripted.WORKER) as worker:
        async with open_services() as services:
            # given: nobody works while they are made
            _, secret = await services.webhooks.endpoints.add(receiver.url)
            await services.webhooks.endpoints.read()
            worker.kill()
            asked: dict[str, Any] = {"model": scripted.MODEL}
            completed = await submitted(services, **asked, max_output_tokens=100)
            incomplete = await submitted(services, **asked, max_output_tokens=1)
            failed = await submitted(services, **asked, deadline_s=0.001)
            cancelled = await submitted(services, **asked)
            assert await cancelled.cancel()
            foreground = await submitted(services, **asked, background=False)
            batches = {
                status: await batch_of(services)
                for status in ("completed", "failed", "expired", "cancelled")
            }
            leases = await services.batches.claim("runner", lease_s=60, limit=10)
            for status, batch_id in batches.items():
                (lease,) = (one for one in leases if one.batch_id == batch_id)
                await services.batches.finish(lease, status)  # type: ignore[arg-type]
            # when
            worker.start()
            await foreground.jobs[0].result(90)
            async with told_webhooks(services):
                await until(lambda: len(receiver.received) >= 8)
        # then
        responses = (completed, incomplete, failed, cancelled)
        names = ("completed", "incomplete", "failed", "cancelled")
        assert told(receiver, secret) == sorted(
            [(f"response.{n}", f"resp_{r.id}") for n, r in zip(names, responses, strict=True)]
            + [(f"batch.{status}", batch_id) for status, batch_id in batches.items()]
        )


async def test_without_an_endpoint_nothing_is_noted(
    services: Services, own_raw: redis.Redis
) -> None:
    group = await submitted(services)
    await batch_of(services)
    await group.jobs[0].result(90)
    assert left(own_raw) == set()


async def test_an_endpoint_gets_the_events_of_its_key_and_its_types(
    services: Services, receiver: Receiver, own_raw: redis.Redis
) -> None:
    # given
    endpoints = services.webhooks.endpoints
    _, secret = await endpoints.add(receiver.url, ["response.incomplete"])
    await endpoints.add(receiver.url, key="0123456789ab")
    await endpoints.add(receiver.url, ["response.failed", "batch.failed"])
    await endpoints.read()
    # when
    mine = await submitted(services, "0123456789ab")
    other = await submitted(services, "ba9876543210")
    async with told_webhooks(services):
        await until(lambda: len(receiver.received) >= 3)
        await until(lambda: left(own_raw) == {BulkKeys.WEBHOOKS.encode()})
    # then
    ids = [json.loads(one.body)["data"]["id"] for one in receiver.received]
    assert sorted(ids) == sorted([f"resp_{mine.id}"] * 2 + [f"resp_{other.id}"])
    with pytest.raises(Exception, match="signature"):
        told(receiver, secret)  # one of them has the other endpoint's


async def test_what_is_not_received_is_sent_again_with_the_same_id(
    services: Services, receiver: Receiver
) -> None:
    # given
    answers = iter([(500, {}), (302, {"location": "http://127.0.0.1:9/"}), (204, {})])
    receiver.answers = lambda _: next(answers)
    _, secret = await services.webhooks.endpoints.add(receiver.url)
    await services.webhooks.endpoints.read()
    # when
    group = await submitted(services)
    async with told_webhooks(services):
        await until(lambda: len(receiver.received) == 3)
    # then
    assert told(receiver, secret) == [("response.incomplete", f"resp_{group.id}")] * 3
    assert len(set(receiver.ids)) == 1


async def test_a_gateway_that_dies_before_the_delivery_loses_nothing(
    services: Services,
    open_services: OpenServices,
    receiver: Receiver,
    own_raw: redis.Redis,
) -> None:
    # given: one that noted the job and is no more, one that claimed the event and is no more
    _, secret = await services.webhooks.endpoints.add(receiver.url)
    await services.webhooks.endpoints.read()
    group = await submitted(services)
    await group.jobs[0].result(90)
    runner = WebhookRunner(services)
    endpoints = await services.webhooks.endpoints.read()
    await until_looked(runner, endpoints)
    deliveries, (backlog,) = await services.webhooks.claim(
        [(endpoints[0], 5)], lease_s=1, longest_s=60
    )
    assert (len(deliveries), backlog.undelivered, receiver.received) == (1, 1, [])
    # when
    async with open_services() as other, told_webhooks(other):
        await until(lambda: left(own_raw) == {BulkKeys.WEBHOOKS.encode()})
    # then
    assert told(receiver, secret) == [("response.incomplete", f"resp_{group.id}")]
    # when: the dead one was not dead, and has an answer late
    await services.webhooks.failed(deliveries[0], deliveries[0].failures, 0.0)
    assert await services.webhooks.backlog(endpoints[0].id) == type(backlog)(0, 0)


async def until_looked(runner: WebhookRunner, endpoints: Any) -> None:
    """Its event is filed."""
    repository = runner._repository
    while not (await repository.backlog(endpoints[0].id)).undelivered:
        await runner._look(endpoints)
        await asyncio.sleep(0.05)


async def test_two_gateways_file_one_event(
    services: Services, open_services: OpenServices, receiver: Receiver
) -> None:
    _, secret = await services.webhooks.endpoints.add(receiver.url)
    await services.webhooks.endpoints.read()
    groups = [await submitted(services) for _ in range(20)]
    async with open_services() as other, told_webhooks(services), told_webhooks(other):
        await until(lambda: len(receiver.received) >= 20)
    expected = sorted(("response.incomplete", f"resp_{group.id}") for group in groups)
    assert told(receiver, secret) == expected


async def test_what_fails_for_too_long_is_dead_until_it_is_sent_again(
    open_services: OpenServices, own_broker: EmbeddedBroker, queue: str, receiver: Receiver
) -> None:
    receiver.answers = lambda _: (500, {})
    with serving("w", own_broker.url, queue=queue):
        async with open_services(webhook_give_up_s=0.2) as services, told_webhooks(services):
            webhooks = services.webhooks
            endpoint, secret = await webhooks.endpoints.add(receiver.url)
            await webhooks.endpoints.read()
            group = await submitted(services)
            # when
            while not (events := await webhooks.dead(endpoint.id, 10)):
                await asyncio.sleep(0.05)
            # then
            (event,) = events
            assert event.failures.count == len(receiver.received) > 1
            assert event.failures.reason == "answered 500"
            assert (await webhooks.backlog(endpoint.id)).undelivered == 0
            # when
            receiver.answers = lambda _: (200, {})
            assert await webhooks.resend(endpoint.id, [event.event.id, "evt_none"]) == 1
            before = len(receiver.received)
            await until(lambda: len(receiver.received) > before)
    assert set(told(receiver, secret)) == {("response.incomplete", f"resp_{group.id}")}


async def test_who_answers_gone_is_asked_no_more(services: Services, receiver: Receiver) -> None:
    receiver.answers = lambda _: (410, {})
    endpoint, _ = await services.webhooks.endpoints.add(receiver.url)
    await services.webhooks.endpoints.read()
    await submitted(services)
    async with told_webhooks(services):
        while not await services.webhooks.dead(endpoint.id, 10):
            await asyncio.sleep(0.05)
    assert len(receiver.received) == 1


async def test_an_endpoint_that_hangs_holds_up_no_other(
    services: Services, open_services: OpenServices, receiver: Receiver
) -> None:
    # given: more events for it than are under way at a time
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hanging.append(await reader.readuntil(b"\r\n"))
        await reader.read()
        writer.transport.abort()

    hanging: list[bytes] = []
    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        await services.webhooks.endpoints.add(f"http://127.0.0.1:{port}/")
        _, secret = await services.webhooks.endpoints.add(receiver.url)
        await services.webhooks.endpoints.read()
        for _ in range(20):
            await submitted(services)
        # when
        async with open_services(webhook_timeout_s=600) as patient, told_webhooks(patient):
            await until(lambda: len(receiver.received) == 20)
            await until(lambda: len(hanging) == 8)
    # then
    assert len(told(receiver, secret)) == 20
    assert len(hanging) == 8


async def test_an_endpoint_that_was_removed_gets_nothing(
    services: Services, receiver: Receiver, own_raw: redis.Redis
) -> None:
    # given
    receiver.answers = lambda _: (500, {})
    endpoint, _ = await services.webhooks.endpoints.add(receiver.url)
    await services.webhooks.endpoints.read()
    await submitted(services)
    async with told_webhooks(services):
        await until(lambda: receiver.received)
        # when
        await services.webhooks.endpoints.remove(endpoint.id)
        await services.webhooks.endpoints.read()
    # then
    assert left(own_raw) == set()


async def test_what_was_not_enqueued_owes_nothing(
    services: Services, open_services: OpenServices, receiver: Receiver, own_raw: redis.Redis
) -> None:
    # given
    await services.webhooks.endpoints.add(receiver.url)
    await services.webhooks.endpoints.read()
    first = await submitted(services, idempotency_key="k")
    # when
    again = await submitted(services, idempotency_key="k")
    async with open_services(max_queued_tokens=1) as full:
        await full.webhooks.endpoints.read()
        with pytest.raises(QueueFull):
            await submitted(full, max_output_tokens=1000)
    # then
    assert again.id == first.id
    entries = own_raw.zrange(BulkKeys.webhook_jobs(first.jobs[0]._client.settings.queue), 0, -1)
    assert [entry.split()[1].decode() for entry in entries] == [first.id]


async def test_secrets_are_in_no_log(
    services: Services, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(one: Received) -> tuple[int, dict[str, str]]:
        return (500 if len(receiver.received) == 1 else 200), {}

    receiver.answers = answer
    with caplog.at_level("DEBUG"):
        _, secret = await services.webhooks.endpoints.add(receiver.url)
        await services.webhooks.endpoints.read()
        await submitted(services)
        async with told_webhooks(services):
            await until(lambda: len(receiver.received) == 2)
    assert "was not delivered" in caplog.text
    assert secret not in caplog.text
    assert receiver.received[0].headers["webhook-signature"] not in caplog.text
