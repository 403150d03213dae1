"""A client that was closed says so, in words of ours."""

import pytest

from rose.errors import ClientClosed
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import AsyncClient, Client


def test_a_blocking_client_that_was_closed(broker: EmbeddedBroker, queue: str) -> None:
    # given
    with Client(redis_url=broker.url, queue=queue) as client:
        job = client.submit("ab")
    # when / then
    for use in (
        lambda: client.submit("ab"),
        job.status,
        job.cancel,
        job.result,
        lambda: list(job.stream()),
    ):
        with pytest.raises(ClientClosed, match="the client is closed"):
            use()


async def test_an_asyncio_client_that_was_closed(broker: EmbeddedBroker, queue: str) -> None:
    # given
    async with AsyncClient(redis_url=broker.url, queue=queue) as client:
        job = await client.submit("ab")
    # when / then
    for use in (lambda: client.submit("ab"), job.status, job.cancel, job.result):
        with pytest.raises(ClientClosed, match="the client is closed"):
            await use()
