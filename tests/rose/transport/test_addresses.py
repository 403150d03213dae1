"""A name with several addresses, some of them dead."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from rose.transport.addresses import connected_socket
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import AsyncClient, Client
from tests.conftest import needs_redis_server
from tests.support.echo import echoed, serving

NAME = "redis.example"

Addresses = list[tuple[str, int]]


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> Addresses:
    """Those of the name: what it resolves to, in this order."""
    known: Addresses = []
    resolve = socket.getaddrinfo

    def resolved(host: Any, *arguments: Any, **options: Any) -> Any:
        if host != NAME:
            return resolve(host, *arguments, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in known]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    return known


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """Packets to it are dropped: its backlog is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(8):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(listener.getsockname())
        yield listener.getsockname()


@pytest.fixture
def refusing() -> tuple[str, int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address: tuple[str, int] = listener.getsockname()
    return address


@needs_redis_server
def test_a_client_reaches_the_address_that_lives(
    own_redis: EmbeddedBroker, addresses: Addresses, silent: tuple[str, int], queue: str
) -> None:
    # given
    addresses += [silent, ("127.0.0.1", own_redis.port)]
    url = f"redis://{NAME}/0"

    async def asks() -> tuple[int, ...]:
        async with AsyncClient(redis_url=url, queue=queue) as client:
            job = await client.submit("hi", max_new_tokens=5)
            return (await job.result(timeout_s=60)).token_ids

    # when
    with serving("reader", own_redis.url, queue=queue):
        answer = asyncio.run(asks())
    # then
    assert answer == echoed(b"hi", 5)


@needs_redis_server
def test_a_blocking_client_does_not_wait_for_those_that_are_dead(
    own_redis: EmbeddedBroker, addresses: Addresses, silent: tuple[str, int], queue: str
) -> None:
    # given: each of them would take all the time that there is
    addresses += [silent, silent, ("127.0.0.1", own_redis.port)]
    # when
    with Client(redis_url=f"redis://{NAME}/0", queue=queue, redis_timeout_s=3600) as client:
        job = client.submit("hi", max_new_tokens=5)
        with serving("reader", own_redis.url, queue=queue):
            answer = job.result(timeout_s=60).token_ids
    # then
    assert answer == echoed(b"hi", 5)


def connect() -> socket.socket:
    async def connected() -> socket.socket:
        return await asyncio.wait_for(connected_socket(NAME, 6379), 60)

    return asyncio.run(connected())


def test_one_that_refuses_costs_no_time(
    addresses: Addresses,
    refusing: tuple[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given
    monkeypatch.setattr("rose.transport.addresses._HEAD_START_S", 3600)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        addresses += [refusing, listener.getsockname()]
        # when / then
        with connect() as connected:
            assert connected.getpeername() == listener.getsockname()


def test_where_none_answers_the_first_error_is_told(
    addresses: Addresses, refusing: tuple[str, int]
) -> None:
    addresses += [refusing, refusing]

    with pytest.raises(ConnectionRefusedError):
        connect()


@pytest.mark.usefixtures("addresses")
def test_a_name_without_an_address_says_so() -> None:
    with pytest.raises(OSError, match=f"{NAME} has no address"):
        connect()


async def test_whoever_waits_no_longer_leaves_no_attempt_behind(
    addresses: Addresses, silent: tuple[str, int]
) -> None:
    addresses += [silent, silent]

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connected_socket(NAME, 6379), 0.5)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.wait_for(asyncio.gather(*others, return_exceptions=True), 60)

    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.filterwarnings("error::ResourceWarning")
@pytest.mark.parametrize("others", [0, 1])
async def test_whoever_leaves_just_when_it_connects_leaves_no_socket_open(
    addresses: Addresses, silent: tuple[str, int], others: int
) -> None:
    # given
    with socket.create_server(("127.0.0.1", 0)) as listener:
        addresses += [silent] * others + [listener.getsockname()]
        asking = asyncio.create_task(connected_socket(NAME, 6379))
        with await asyncio.to_thread(lambda: listener.accept()[0]) as accepted:
            # when
            asking.cancel()
            with suppress(asyncio.CancelledError):
                (await asking).close()
            # then: it reads the end
            assert await asyncio.wait_for(asyncio.to_thread(accepted.recv, 1), 60) == b""
