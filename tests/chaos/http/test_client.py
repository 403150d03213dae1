"""The client of the harness takes whole events alone, and comes back for the rest."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.chaos.http.client import Client
from tests.chaos.http.http import Disconnected, send
from tests.chaos.http.requests import Request, draw

REQUEST = Request(0, "chat", "ab", 2, ())
HEAD = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-rose-job-id: 0-a\r\n\r\n"


class ScriptedServer:
    """Gives each connection the next answer, and hangs up."""

    def __init__(self, answers: Sequence[bytes]) -> None:
        self._answers = list(answers)
        self.request_heads: list[str] = []

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[int, None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.request_heads.append(head)
        writer.write(self._answers.pop(0))
        await writer.drain()
        writer.close()


def chunk(id_: str, content: str) -> str:
    delta = f'{{"choices":[{{"delta":{{"content":"{content}"}},"finish_reason":null}}]}}'
    return f"id: {id_}\ndata: {delta}\n\n"


def chunked(*texts: str) -> bytes:
    return "".join(f"{len(text.encode()):x}\r\n{text}\r\n" for text in texts).encode()


def a_client(port: int, request: Request = REQUEST) -> Client:
    return Client(port, request, give_up=lambda: False, on_event=lambda: None)


async def test_it_comes_back_with_the_last_whole_event() -> None:
    # given
    whole, half = chunk("1-0", "97 "), chunk("2-0", "98 ")[:20]
    rest = chunked(": keep-alive\n\n", chunk("2-0", "98 "), "data: [DONE]\n\n")
    server = ScriptedServer(
        [HEAD.encode() + chunked(whole + half), HEAD.encode() + rest + b"0\r\n\r\n"]
    )
    # when
    async with server.open() as port:
        received = await a_client(port).run()
    # then
    assert [id_ for id_, _ in received.frames] == ["1-0", "2-0"]
    assert (received.ended, received.resumed, received.created) == (True, 1, 1)
    assert server.request_heads[1].startswith("GET /v1/jobs/0-a/events ")
    assert "last-event-id: 1-0" in server.request_heads[1]


async def test_it_repeats_its_request_with_its_key_until_it_knows_its_job() -> None:
    # given
    full = b"HTTP/1.1 429 Too Many\r\nretry-after: 0\r\ncontent-length: 2\r\n\r\n{}"
    good = HEAD.encode() + chunked("data: [DONE]\n\n") + b"0\r\n\r\n"
    server = ScriptedServer([b"", full, good])
    # when
    async with server.open() as port:
        received = await a_client(port).run()
    # then
    assert (received.ended, received.resumed, received.created) == (True, 0, 3)
    assert all("idempotency-key: chaos-0" in head for head in server.request_heads)


async def test_it_hangs_up_where_its_request_says_so() -> None:
    # given
    first = HEAD.encode() + chunked(chunk("1-0", "97 "), chunk("2-0", "98 "))
    second = HEAD.encode() + chunked(chunk("2-0", "98 "), "data: [DONE]\n\n") + b"0\r\n\r\n"
    server = ScriptedServer([first, second])
    # when
    async with server.open() as port:
        received = await a_client(port, Request(0, "chat", "ab", 2, leaves_at=(1,))).run()
    # then
    assert [id_ for id_, _ in received.frames] == ["1-0", "2-0"]
    assert received.resumed == 1


async def test_an_answer_that_is_not_documented_is_written_down() -> None:
    # given
    server = ScriptedServer([b"HTTP/1.1 500 Oh\r\ncontent-length: 4\r\n\r\noops"])
    # when
    async with server.open() as port:
        received = await a_client(port).run()
    # then
    assert received.undocumented == ["500 oops"]


async def test_an_answer_that_breaks_off_raises() -> None:
    # given
    server = ScriptedServer([HEAD.encode() + chunked("data: 1\n\n")])
    # when / then
    async with server.open() as port, send(port, "GET", "/") as answer:
        events = answer.events()
        assert (await anext(events)).data == "1"
        with pytest.raises(Disconnected):
            await anext(events)


def test_the_seed_decides_the_requests() -> None:
    # given
    requests = [draw(5, number, 40, 10) for number in range(60)]
    # then
    assert requests == [draw(5, number, 40, 10) for number in range(60)]
    assert [request.endpoint for request in requests[:50]].count("response") == 40
    assert any(request.leaves_at for request in requests)
