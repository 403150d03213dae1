"""Addresses that are no host and port."""

import asyncio
from pathlib import Path

from rose_cli.local.broker import EmbeddedBroker
from rose_producer import AsyncClient, Client
from tests.conftest import needs_redis_server
from tests.support.echo import echoed, serving


@needs_redis_server
def test_a_unix_socket_serves_producers_subscribers_and_workers(tmp_path: Path, queue: str) -> None:
    # given
    url = f"unix://{tmp_path / 'redis.sock'}?db=3"
    options = {"port": "0", "unixsocket": str(tmp_path / "redis.sock")}

    async def asks() -> tuple[int, ...]:
        async with AsyncClient(redis_url=url, queue=queue) as client:
            job = await client.submit("async", max_new_tokens=5)
            return (await job.result()).token_ids

    with (
        EmbeddedBroker(fake=False, options=options, url=url),
        serving("reader", url, queue=queue),
        Client(redis_url=url, queue=queue) as client,
    ):
        # when
        job = client.submit("blocking", max_new_tokens=8)
        events = list(job.stream())
        answer = asyncio.run(asks())
        # then
        assert events[-1].type == "finished"
        assert job.result().token_ids == echoed(b"blocking", 8)
        assert answer == echoed(b"async", 5)
