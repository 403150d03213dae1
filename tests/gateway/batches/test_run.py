"""One pass over a batch's lines: how many are in hand, how it is stopped, who goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

import pytest
import redis

from rose.protocol import Partition, Priority
from rose_cli.demo.broker import EmbeddedBroker
from rose_cli.demo.workers import WorkerProcess
from rose_gateway.batches.answer import Answer, AnswerWriter
from rose_gateway.batches.answering import Asker
from rose_gateway.batches.line import Line
from rose_gateway.batches.run import BatchRun
from rose_gateway.batches.stop import Stop
from rose_gateway.caller import Caller
from rose_gateway.door import Door
from tests.conftest import needs_redis_server
from tests.support.batch_lines import completion, line_of, one_by_one, opened_door, said
from tests.support.bench import until
from tests.support.echo import SLOW, has_no_jobs
from tests.support.proxy import Proxy

#: More than any test waits for.
_ENDLESS = 5000


class _Counting(Asker):
    """Answers by itself, when it is let; counts what is in hand."""

    def __init__(self) -> None:
        self.in_hand = self.peak = 0
        self.go = asyncio.Event()

    async def ask(self, line: Line, stop: Stop) -> Answer:
        self.in_hand += 1
        self.peak = max(self.peak, self.in_hand)
        await self.go.wait()
        self.in_hand -= 1
        return AnswerWriter("batch_1").answered(line, "x", {}, status=200, succeeded=True)


@pytest.fixture
async def slow_door(
    broker: EmbeddedBroker, queue: str, start_worker: Callable[..., WorkerProcess]
) -> AsyncIterator[Door]:
    """Its worker has four slots and takes its time."""
    start_worker(max_batch_size=4, **SLOW)
    async with opened_door(broker.url, queue) as door:
        yield door


def numbered(count: int, tokens: int = 2) -> AsyncGenerator[Line, None]:
    return one_by_one(
        line_of(number, completion(f"{number}", tokens)) for number in range(1, count + 1)
    )


async def test_no_more_lines_are_in_hand_than_the_window_holds() -> None:
    # given
    asker = _Counting()
    answers = BatchRun(asker, window=3).answers(numbered(10))
    # when
    first = asyncio.ensure_future(anext(answers))
    await until(lambda: asker.in_hand == 3)
    asker.go.set()
    got = [await first] + [answer async for answer in answers]
    # then
    assert asker.peak == 3
    assert sorted(answer.number for answer in got) == list(range(1, 11))


async def test_a_reader_that_is_slow_holds_the_lines_up() -> None:
    # given
    asker, read = _Counting(), []
    asker.go.set()

    async def lines() -> AsyncGenerator[Line, None]:
        async for line in numbered(100):
            read.append(line.number)
            yield line

    # when
    async with aclosing(BatchRun(asker, window=3).answers(lines())) as answers:
        await anext(answers)
        for _ in range(50):
            await asyncio.sleep(0)
    # then: those in hand, those that wait for the reader, and the one that it has
    assert len(read) <= 7


async def test_a_file_that_cannot_be_read_ends_the_run() -> None:
    asker = _Counting()
    asker.go.set()

    async def lines() -> AsyncGenerator[Line, None]:
        yield line_of(1, {})
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        _ = [answer async for answer in BatchRun(asker, window=3).answers(lines())]


async def test_a_cancelled_run_answers_what_it_has_begun(
    slow_door: Door, queue: str, raw: redis.Redis
) -> None:
    # given: two lines that end, then more in hand than the worker has slots
    run = BatchRun(Asker(slow_door, Caller(), "batch_1"), window=8)
    two_ended = asyncio.Event()

    async def some() -> AsyncGenerator[Line, None]:
        for number in range(1, 31):
            if number == 3:
                await two_ended.wait()
            yield line_of(number, completion("x", 2 if number < 3 else _ENDLESS))

    lines = some()
    answers = run.answers(lines)
    got = [await anext(answers), await anext(answers)]
    two_ended.set()
    await until(lambda: raw.xlen(Partition(queue).jobs(Priority.LOW)) == 8)
    # when
    await run.cancel()
    got += [answer async for answer in answers]
    # then
    rest = [line.number async for line in lines]
    assert sorted(answer.number for answer in got) + rest == list(range(1, 31))
    assert {answer.number for answer in got if answer.succeeded} == {1, 2}
    assert {said(answer.record)["error"]["code"] for answer in got[2:]} == {"batch_cancelled"}
    await until(lambda: has_no_jobs(raw, Partition(queue)))


async def test_what_is_in_hand_when_the_time_is_over_expires(
    slow_door: Door, queue: str, raw: redis.Redis
) -> None:
    for left_s in (0.5, 5, 50):  # more time where that is not enough to begin three lines
        # given
        asker = Asker(slow_door, Caller(), f"batch_{left_s}")
        run = BatchRun(asker, window=3, expires_at=time.time() + left_s)
        # when
        got = [answer async for answer in run.answers(numbered(10, _ENDLESS))]
        if len(got) == 3:
            break
    # then
    assert run.stopped == "batch_expired"
    assert {said(answer.record)["error"]["code"] for answer in got} == {"batch_expired"}
    assert sorted(answer.number for answer in got) == [1, 2, 3]
    await until(lambda: has_no_jobs(raw, Partition(queue)))


async def test_whoever_goes_on_gets_the_jobs_of_whoever_left(
    slow_door: Door, queue: str, raw: redis.Redis
) -> None:
    # given
    left = BatchRun(Asker(slow_door, Caller(), "batch_1"), window=6)
    async with aclosing(left.answers(numbered(12, 20))) as answers:
        first = [await anext(answers), await anext(answers)]
    # when
    again = BatchRun(Asker(slow_door, Caller(), "batch_1"), window=6)
    got = [answer async for answer in again.answers(numbered(12, 20))]
    # then
    assert sorted(answer.number for answer in got) == list(range(1, 13))
    assert {answer.record for answer in first} <= {answer.record for answer in got}
    assert raw.xinfo_stream(Partition(queue).jobs(Priority.LOW))["entries-added"] == 12


@needs_redis_server
async def test_a_redis_that_is_away_costs_time_and_no_line(
    broker: EmbeddedBroker, queue: str, start_worker: Callable[..., WorkerProcess]
) -> None:
    # given
    start_worker(max_batch_size=4, **SLOW)
    with Proxy(broker.port) as proxy:
        impatient = {"redis_retries": 0, "reconnect_timeout_s": 0.3}
        async with opened_door(proxy.url, queue, **impatient) as door:
            asker = Asker(door, Caller(), "batch_1")
            answers = BatchRun(asker, window=8).answers(numbered(40, 5))
            got = [await anext(answers)]
            # when
            proxy.answer = b"-LOADING Redis is loading the dataset in memory"
            proxy.cut_now()
            rest = asyncio.create_task(_all(answers))
            await until(lambda: asker.trouble)
            proxy.heal()
            got += await rest
    # then
    assert sorted(answer.number for answer in got) == list(range(1, 41))
    assert all(answer.succeeded for answer in got)


async def test_a_worker_that_dies_is_not_noticed(
    broker: EmbeddedBroker, queue: str, start_worker: Callable[..., WorkerProcess]
) -> None:
    # given
    doomed = start_worker(max_batch_size=4, **SLOW)
    async with opened_door(broker.url, queue) as door:
        answers = BatchRun(Asker(door, Caller(), "batch_1"), window=8).answers(numbered(30, 5))
        got = [await anext(answers)]
        # when
        doomed.kill()
        start_worker()
        got += await _all(answers)
    # then
    assert sorted(answer.number for answer in got) == list(range(1, 31))
    assert all(answer.succeeded for answer in got)


async def _all(answers: AsyncGenerator[Answer, None]) -> list[Answer]:
    return [answer async for answer in answers]
