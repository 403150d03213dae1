"""The client of the harness hears whole events alone, and comes back for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.chaos.door.asks import Ask, draw
from tests.chaos.door.client import Client
from tests.chaos.door.http import Disconnected, request

ASK = Ask(0, "chat", "ab", 2, ())
HEAD = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-rose-job-id: 0-a\r\n\r\n"


class Door:
    """Gives each connection the next answer, and hangs up."""

    def __init__(self, answers: Sequence[bytes]) -> None:
        self._answers = list(answers)
        self.heard: list[str] = []

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[int, None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heard.append(head)
        writer.write(self._answers.pop(0))
        await writer.drain()
        writer.close()


def chunk(id_: str, content: str) -> str:
    delta = f'{{"choices":[{{"delta":{{"content":"{content}"}},"finish_reason":null}}]}}'
    return f"id: {id_}\ndata: {delta}\n\n"


def chunked(*texts: str) -> bytes:
    return "".join(f"{len(text.encode()):x}\r\n{text}\r\n" for text in texts).encode()


def a_client(port: int, ask: Ask = ASK) -> Client:
    return Client(port, ask, give_up=lambda: False, on_event=lambda: None)


async def test_it_comes_back_with_the_last_whole_event() -> None:
    # given
    whole, half = chunk("1-0", "97 "), chunk("2-0", "98 ")[:20]
    rest = chunked(": keep-alive\n\n", chunk("2-0", "98 "), "data: [DONE]\n\n")
    door = Door([HEAD.encode() + chunked(whole + half), HEAD.encode() + rest + b"0\r\n\r\n"])
    # when
    async with door.open() as port:
        told = await a_client(port).run()
    # then
    assert [id_ for id_, _ in told.frames] == ["1-0", "2-0"]
    assert (told.ended, told.resumed, told.created) == (True, 1, 1)
    assert door.heard[1].startswith("GET /v1/jobs/0-a/events ")
    assert "last-event-id: 1-0" in door.heard[1]


async def test_it_asks_again_with_its_key_until_it_knows_its_job() -> None:
    # given
    full = b"HTTP/1.1 429 Too Many\r\nretry-after: 0\r\ncontent-length: 2\r\n\r\n{}"
    good = HEAD.encode() + chunked("data: [DONE]\n\n") + b"0\r\n\r\n"
    door = Door([b"", full, good])
    # when
    async with door.open() as port:
        told = await a_client(port).run()
    # then
    assert (told.ended, told.resumed, told.created) == (True, 0, 3)
    assert all("idempotency-key: door-0" in head for head in door.heard)


async def test_it_hangs_up_where_its_ask_says_so() -> None:
    # given
    first = HEAD.encode() + chunked(chunk("1-0", "97 "), chunk("2-0", "98 "))
    second = HEAD.encode() + chunked(chunk("2-0", "98 "), "data: [DONE]\n\n") + b"0\r\n\r\n"
    door = Door([first, second])
    # when
    async with door.open() as port:
        told = await a_client(port, Ask(0, "chat", "ab", 2, leaves_at=(1,))).run()
    # then
    assert [id_ for id_, _ in told.frames] == ["1-0", "2-0"]
    assert told.resumed == 1


async def test_an_answer_that_is_not_documented_is_written_down() -> None:
    # given
    door = Door([b"HTTP/1.1 500 Oh\r\ncontent-length: 4\r\n\r\noops"])
    # when
    async with door.open() as port:
        told = await a_client(port).run()
    # then
    assert told.odd == ["500 oops"]


async def test_an_answer_that_breaks_off_is_told_from_one_that_ends() -> None:
    # given
    door = Door([HEAD.encode() + chunked("data: 1\n\n")])
    # when / then
    async with door.open() as port, request(port, "GET", "/") as answer:
        events = answer.events()
        assert (await anext(events)).data == "1"
        with pytest.raises(Disconnected):
            await anext(events)


def test_the_asks_are_the_seed_s() -> None:
    # given
    asks = [draw(5, number, 40, 10) for number in range(60)]
    # then
    assert asks == [draw(5, number, 40, 10) for number in range(60)]
    assert [ask.face for ask in asks[:50]].count("response") == 40
    assert any(ask.leaves_at for ask in asks)
