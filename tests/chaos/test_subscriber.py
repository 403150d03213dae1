"""What a subscriber knows again after its death, and that it insists on a cancel."""

import asyncio
from pathlib import Path

import pytest

from rose.errors import BrokerUnavailable
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import AsyncClient
from tests.chaos.a_context import a_context
from tests.chaos.journal import Journal
from tests.chaos.patience import cancel
from tests.chaos.subscriber import Subscriber
from tests.conftest import needs_redis_server
from tests.support.proxy import Proxy

FINISHED = {"type": "finished", "index": 2}


def a_subscriber(folder: Path) -> Subscriber:
    context = a_context(folder, of=2)
    client = AsyncClient(redis_url=context.redis_url)
    return Subscriber(context, client, Journal(folder / "delivered-0.jsonl"))


def tokens(index: int) -> dict[str, object]:
    return {"type": "tokens", "index": index, "token_ids": [5], "text": "5 "}


async def test_it_goes_on_with_what_had_not_ended(tmp_path: Path) -> None:
    # given
    submitted = Journal(tmp_path / "submitted-0.jsonl")
    delivered = Journal(tmp_path / "delivered-0.jsonl")
    for number in range(6):
        submitted.write(number, f"id-{number}", 1.0)
    for event in (tokens(0), tokens(1), FINISHED):
        delivered.write(0, "id-0", 1.0, event)
    delivered.write(2, "id-2", 1.0, tokens(0))
    # when
    subscriber = a_subscriber(tmp_path)
    subscriber.recall()
    # then
    assert subscriber.open == {2: "id-2", 4: "id-4"}
    assert subscriber.cursor(2) == 1


async def test_it_reads_only_what_its_last_life_had_not(tmp_path: Path) -> None:
    # given
    submitted = Journal(tmp_path / "submitted-0.jsonl")
    delivered = Journal(tmp_path / "delivered-0.jsonl")
    for number in (0, 2):
        submitted.write(number, f"id-{number}", 1.0)
    delivered.write(0, "id-0", 1.0, FINISHED)
    delivered.write(2, "id-2", 1.0, tokens(0))
    a_subscriber(tmp_path).recall()
    for path in (tmp_path / "submitted-0.jsonl", tmp_path / "delivered-0.jsonl"):
        path.write_bytes(b"?" * (path.stat().st_size - 1) + b"\n")  # no JSON any more
    # when
    submitted.write(0, "id-0", 2.0)  # a producer repeats itself
    submitted.write(4, "id-4", 2.0)
    delivered.write(2, "id-2", 2.0, tokens(1))
    subscriber = a_subscriber(tmp_path)
    subscriber.recall()
    # then
    assert subscriber.open == {2: "id-2", 4: "id-4"}
    assert subscriber.cursor(2) == 2


@needs_redis_server
async def test_it_repeats_a_cancel_that_a_silent_redis_has_not_answered(
    own_redis: EmbeddedBroker,
) -> None:
    # given
    with Proxy(own_redis.port) as proxy:
        settings = {"redis_timeout_s": 0.2, "redis_retries": 1}
        async with (
            AsyncClient(redis_url=proxy.url, **settings) as client,
            AsyncClient(redis_url=own_redis.url) as patient,
        ):
            submitted = await patient.submit("ab", max_new_tokens=2)
            job = client.job(submitted.id)
            proxy.silence()
            # when: a call gives up
            insisting = asyncio.create_task(cancel(job))
            with pytest.raises(BrokerUnavailable):
                await job.cancel()
            proxy.speak(lost=True)
            # then
            await insisting
            assert (await submitted.status()).status == "cancelled"
