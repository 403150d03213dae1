"""An asyncio client belongs to one event loop, and says so in another one."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rose.errors import WrongEventLoop
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import AsyncClient, AsyncJob


async def streamed(job: AsyncJob) -> int:
    return len([event async for event in job.stream()])


@pytest.mark.parametrize(
    "use",
    [
        lambda client, _: client.submit("again", max_new_tokens=1),
        lambda client, _: client.queue_status(),
        lambda _, job: job.status(),
        lambda _, job: job.result(),
        lambda _, job: streamed(job),
    ],
    ids=["submit", "queue status", "status", "result", "stream"],
)
def test_a_client_of_another_event_loop_is_refused_and_waits_for_nothing(
    broker: EmbeddedBroker,
    queue: str,
    use: Callable[[AsyncClient, AsyncJob], Coroutine[Any, Any, Any]],
) -> None:
    with asyncio.Runner() as first, asyncio.Runner() as second:
        # given
        client = AsyncClient(redis_url=broker.url, queue=queue)
        job = first.run(client.submit("first", max_new_tokens=1))
        # when, then
        with pytest.raises(WrongEventLoop, match="make one in each"):
            second.run(asyncio.wait_for(use(client, job), timeout=90))
        assert first.run(job.status()).status == "queued"  # it is none the worse for it
        first.run(client.aclose())
