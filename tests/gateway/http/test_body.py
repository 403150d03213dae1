"""What of a body is looked at before it is parsed."""

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from rose_gateway.access.authentication import Caller, RequestContext, enter_request
from rose_gateway.http.middleware import BodyLimit
from rose_gateway.metrics import Metrics


class Client:
    """One request, by hand."""

    def __init__(self, body: bytes, path: str = "/v1/responses") -> None:
        context = RequestContext("req_test", Caller())
        enter_request(context)
        self.scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [],
            "request_context": context,
        }
        self.answers: list[Message] = []
        self._body = body

    async def receive(self) -> Message:
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message: Message) -> None:
        self.answers.append(message)

    @property
    def status(self) -> int:
        return int(self.answers[0]["status"])


@pytest.mark.parametrize("again", [False, True])
async def test_bodies_beyond_what_is_held_at_one_time_are_refused_for_the_moment(
    again: bool,
) -> None:
    # given: an application that answers when it is told to
    proceed, taken = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        taken.set()
        await proceed.wait()
        assert (await receive())["body"] == b"x" * 60
        await send({"type": "http.response.start", "status": 200, "headers": []})

    limit = BodyLimit(app, Metrics(), max_bytes=80, max_total_bytes=100)
    first, second = Client(b"x" * 60), Client(b"x" * 60)
    answering = asyncio.create_task(limit(first.scope, first.receive, first.send))
    await taken.wait()
    if again:  # the first one has been answered
        proceed.set()
        await answering
    # when
    await limit(second.scope, second.receive, second.send)
    # then
    assert second.status == (200 if again else 503)
    if not again:
        assert (b"x-should-retry", b"true") in second.answers[0]["headers"]
    proceed.set()
    await answering
    assert first.status == 200


async def test_uploads_beyond_what_is_held_at_one_time_are_refused_for_the_moment() -> None:
    # given: room for two, each of which counts as 8 MiB whatever its size
    proceed, taken = asyncio.Event(), asyncio.Semaphore(0)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        taken.release()
        await proceed.wait()
        assert (await receive())["body"] == b"x" * 60
        await send({"type": "http.response.start", "status": 200, "headers": []})

    limit = BodyLimit(app, Metrics(), max_bytes=80, max_total_bytes=2**24, max_file_bytes=100)
    uploads = [Client(b"x" * 60, "/v1/files") for _ in range(3)]
    answering = []
    for client in uploads[:2]:
        answering.append(asyncio.create_task(limit(client.scope, client.receive, client.send)))
        await taken.acquire()
    # when
    third = uploads[2]
    await limit(third.scope, third.receive, third.send)
    # then
    assert third.status == 503
    proceed.set()
    await asyncio.gather(*answering)
    assert [client.status for client in uploads[:2]] == [200, 200]
    again = Client(b"x" * 60, "/v1/files")
    await limit(again.scope, again.receive, again.send)
    assert again.status == 200
