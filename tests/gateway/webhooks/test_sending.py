"""One attempt to deliver, to receivers that answer, refuse, hang and lie."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rose_gateway.settings import networks_of
from rose_gateway.storage.webhook_repository import WebhookEvent
from rose_gateway.webhooks.addresses import AddressPolicy
from rose_gateway.webhooks.sending import NotDelivered, WebhookSender
from tests.support.certificates import Certificates
from tests.support.webhook_receiver import LOOPBACK, endpoint_at, receiving

EVENT = WebhookEvent.of("batch.completed", "batch_1", 1_700_000_000)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def sender(timeout_s: float = 60.0, networks: str = LOOPBACK) -> WebhookSender:
    return WebhookSender(AddressPolicy(networks_of(networks)), timeout_s)


@asynccontextmanager
async def serving(handler: Handler, **options: Any) -> AsyncIterator[int]:
    """The port of a server."""
    handling: set[asyncio.Task[Any] | None] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handling.add(asyncio.current_task())
        try:
            await handler(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, **options)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*filter(None, handling), return_exceptions=True)


async def refused(url: str, by: WebhookSender | None = None) -> NotDelivered:
    with pytest.raises(NotDelivered) as error:
        await (by or sender()).send(endpoint_at(url), EVENT)
    return error.value


async def test_an_event_arrives_signed() -> None:
    with receiving() as receiver:
        endpoint = endpoint_at(receiver.url)
        await sender().send(endpoint, EVENT)
    (received,) = receiver.received
    assert received.path == "/hook?from=rose"
    assert received.headers["content-type"] == "application/json"
    assert received.headers["webhook-id"] == EVENT.id
    assert received.verified(endpoint.secrets[0].value) == {
        "id": EVENT.id,
        "object": "event",
        "created_at": 1_700_000_000,
        "type": "batch.completed",
        "data": {"id": "batch_1"},
    }


@pytest.mark.parametrize(
    ("status", "headers", "said", "retry_after_s", "is_final"),
    [
        (500, {}, "answered 500", None, False),
        (503, {"Retry-After": "7"}, "answered 503", 7.0, False),
        (429, {"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"}, "answered 429", None, False),
        (302, {"Location": "http://127.0.0.1:1/"}, "redirects are not followed", None, False),
        (410, {}, "answered 410", None, True),
    ],
)
async def test_only_2xx_is_a_delivery(
    status: int, headers: dict[str, str], said: str, retry_after_s: float | None, is_final: bool
) -> None:
    with receiving() as receiver:
        receiver.answers = lambda _: (status, headers)
        error = await refused(receiver.url)
    assert said in str(error)
    assert (error.retry_after_s, error.is_final) == (retry_after_s, is_final)
    assert len(receiver.received) == 1


async def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "connection: " in str(await refused(f"http://127.0.0.1:{port}/"))


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def endless_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-more: " + b"x" * 8000 + b"\r\n")
        await writer.drain()


async def other_protocol(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"}}")  # else the connection is reset
    writer.write(b"220 mail.example ESMTP\r\n")
    await writer.drain()


@pytest.mark.parametrize(
    ("handler", "timeout_s", "said"),
    [
        (hang, 0.3, "no answer within 0.3 s"),
        (endless_headers, 60.0, "no answer of HTTP"),
        (other_protocol, 60.0, "no answer of HTTP"),
    ],
)
async def test_a_receiver_that_misbehaves_costs_a_bounded_time_and_memory(
    handler: Handler, timeout_s: float, said: str
) -> None:
    async with serving(handler) as port:
        error = await refused(f"http://127.0.0.1:{port}/", sender(timeout_s))
    assert said in str(error)


async def test_an_endless_body_is_not_read() -> None:
    ended = asyncio.Event()

    async def endless_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"2000\r\n" + b"x" * 0x2000 + b"\r\n")
                await writer.drain()
        except OSError:
            ended.set()

    async with serving(endless_body) as port:
        await sender().send(endpoint_at(f"http://127.0.0.1:{port}/"), EVENT)
        await asyncio.wait_for(ended.wait(), 60)


async def test_loopback_is_refused_before_anything_is_sent() -> None:
    with receiving() as receiver:
        error = await refused(receiver.url, sender(networks=""))
    assert "address refused: 127.0.0.1 is not public" in str(error)
    assert receiver.received == []


async def test_a_name_that_changes_its_address_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given: a name that is allowed when it is looked up first, and is another one's afterwards
    real, asked = socket.getaddrinfo, []

    def rebinding(host: Any, *args: Any, **options: Any) -> Any:
        if host != "rebinds.test":
            return real(host, *args, **options)
        asked.append(host)
        return real("127.0.0.1" if len(asked) == 1 else "127.0.0.2", *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with receiving() as receiver:
        # when
        url = receiver.url.replace("127.0.0.1", "rebinds.test")
        await sender(networks="127.0.0.1/32").send(endpoint_at(url), EVENT)
    # then
    assert asked == ["rebinds.test"]
    (received,) = receiver.received
    assert received.headers["host"].startswith("rebinds.test:")


async def test_a_certificate_must_be_that_of_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = Certificates(tmp_path)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.drain()
        await reader.read()

    for name in ("server", "elsewhere"):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificates.path(f"{name}.crt"), certificates.path(f"{name}.key"))
        async with serving(accept, ssl=context) as port:
            url = f"https://localhost:{port}/"
            assert "TLS: " in str(await refused(url))
            with monkeypatch.context() as trusting:
                trusting.setenv("SSL_CERT_FILE", certificates.path("ca.crt"))
                by = sender()
            if name == "server":
                await by.send(endpoint_at(url), EVENT)
            else:
                assert "TLS: " in str(await refused(url, by))
