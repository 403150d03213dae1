"""One pass over a batch's lines: how many are in hand, and what holds it up or ends it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import pytest

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_gateway.access.authentication import Caller
from rose_gateway.batches.cancellation import CancellationToken
from rose_gateway.batches.line import Answer, AnswerWriter, Line
from rose_gateway.batches.line_processor import LineProcessor
from rose_gateway.batches.run import BatchRun
from tests.conftest import needs_redis_server
from tests.support.batch_lines import completion, line_of, one_by_one, opened_services
from tests.support.bench import until
from tests.support.echo import SLOW
from tests.support.proxy import Proxy


class _Counting(LineProcessor):
    """Answers by itself, when it is let; counts what is in hand."""

    def __init__(self) -> None:
        self.in_hand = self.peak = 0
        self.go = asyncio.Event()

    async def process(self, line: Line, cancellation: CancellationToken) -> Answer:
        self.in_hand += 1
        self.peak = max(self.peak, self.in_hand)
        await self.go.wait()
        self.in_hand -= 1
        return AnswerWriter("batch_1").answered(line, "x", {}, status=200, succeeded=True)


def numbered(count: int, tokens: int = 2) -> AsyncGenerator[Line, None]:
    return one_by_one(
        line_of(number, completion(f"{number}", tokens)) for number in range(1, count + 1)
    )


async def test_no_more_lines_are_in_hand_than_the_window_holds() -> None:
    # given
    processor = _Counting()
    answers = BatchRun(processor, window=3).answers(numbered(10))
    # when
    first = asyncio.ensure_future(anext(answers))
    await until(lambda: processor.in_hand == 3)
    processor.go.set()
    got = [await first] + [answer async for answer in answers]
    # then
    assert processor.peak == 3
    assert sorted(answer.number for answer in got) == list(range(1, 11))


async def test_lines_in_hand_hold_a_bounded_number_of_bytes() -> None:
    # given: lines of 4 MiB, and room for many
    processor = _Counting()
    body = completion("x" * 4_000_000)
    lines = one_by_one(line_of(number, body) for number in range(1, 11))
    answers = BatchRun(processor, window=10).answers(lines)
    # when
    first = asyncio.ensure_future(anext(answers))
    await until(lambda: processor.in_hand == 4)
    processor.go.set()
    got = [await first] + [answer async for answer in answers]
    # then
    assert processor.peak == 4
    assert sorted(answer.number for answer in got) == list(range(1, 11))


async def test_a_reader_that_is_slow_holds_the_lines_up() -> None:
    # given
    processor, read = _Counting(), []
    processor.go.set()

    async def lines() -> AsyncGenerator[Line, None]:
        async for line in numbered(100):
            read.append(line.number)
            yield line

    # when
    async with aclosing(BatchRun(processor, window=3).answers(lines())) as answers:
        await anext(answers)
        for _ in range(50):
            await asyncio.sleep(0)
    # then: those in hand, those that wait for the reader, and the one that it has
    assert len(read) <= 7


async def test_a_file_that_cannot_be_read_ends_the_run() -> None:
    processor = _Counting()
    processor.go.set()

    async def lines() -> AsyncGenerator[Line, None]:
        yield line_of(1, {})
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        _ = [answer async for answer in BatchRun(processor, window=3).answers(lines())]


@needs_redis_server
async def test_a_redis_that_is_away_costs_time_and_no_line(
    broker: EmbeddedBroker, queue: str, start_worker: Callable[..., WorkerProcess]
) -> None:
    # given
    start_worker(max_batch_size=4, **SLOW)
    with Proxy(broker.port) as proxy:
        impatient = {"redis_retries": 0, "reconnect_timeout_s": 0.3}
        async with opened_services(proxy.url, queue, **impatient) as services:
            processor = LineProcessor(services, Caller(), "batch_1")
            answers = BatchRun(processor, window=8).answers(numbered(40, 5))
            got = [await anext(answers)]
            # when
            proxy.answer = b"-LOADING Redis is loading the dataset in memory"
            proxy.cut_now()
            rest = asyncio.create_task(_all(answers))
            await until(lambda: processor.trouble)
            proxy.heal()
            got += await rest
    # then
    assert sorted(answer.number for answer in got) == list(range(1, 41))
    assert all(answer.succeeded for answer in got)


async def _all(answers: AsyncGenerator[Answer, None]) -> list[Answer]:
    return [answer async for answer in answers]
