"""One run over a batch's lines: how many are in hand, what is stored, what ends it."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Sequence

import pytest

from rose.errors import MalformedMessage
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_gateway.access.authentication import Caller
from rose_gateway.batches.line import Answer, AnswerWriter, Line
from rose_gateway.batches.line_processor import CancellationToken, LineProcessor
from rose_gateway.batches.run import BatchRun, Checkpoint, Piece
from tests.conftest import needs_redis_server
from tests.support.batch_lines import completion, line_of, one_by_one, opened_services
from tests.support.bench import until
from tests.support.echo import SLOW
from tests.support.proxy import Proxy

BEGIN = Checkpoint("batch_1", "file-1")


class _Counting(LineProcessor):
    """Answers by itself, when it is let; counts what is in hand."""

    def __init__(self) -> None:
        self.in_hand = self.peak = 0
        self.go = asyncio.Event()
        self.slow: dict[int, asyncio.Event] = {}

    async def process(self, line: Line, cancellation: CancellationToken) -> Answer:
        self.in_hand += 1
        self.peak = max(self.peak, self.in_hand)
        await self.go.wait()
        self.in_hand -= 1
        if line.number in self.slow:
            await self.slow[line.number].wait()
        return AnswerWriter("batch_1").answered(line, "x", {}, status=200, succeeded=True)


class _Stored:
    """Keeps what it is given in memory."""

    def __init__(self, every_s: float = 0.0) -> None:
        self.every_s = every_s
        self.checkpoints: list[Checkpoint] = []
        self.output: list[bytes] = []

    async def store(
        self, checkpoint: Checkpoint, output: Sequence[bytes], errors: Sequence[bytes]
    ) -> Checkpoint:
        self.output += output
        self.checkpoints.append(checkpoint)
        return checkpoint

    @property
    def lines(self) -> int:
        return self.checkpoints[-1].line if self.checkpoints else 0


def run_of(processor: LineProcessor, store: _Stored, window: int, **more: bool) -> BatchRun:
    return BatchRun(processor, store, BEGIN, window=window, **more)


def numbered(count: int, tokens: int = 2) -> AsyncGenerator[Line, None]:
    return one_by_one(
        line_of(number, completion(f"{number}", tokens)) for number in range(1, count + 1)
    )


async def test_no_more_lines_are_in_hand_than_the_window_holds() -> None:
    # given
    processor, store = _Counting(), _Stored()
    run = run_of(processor, store, 3)
    # when
    finishing = asyncio.create_task(run.finish(numbered(10)))
    await until(lambda: processor.in_hand == 3)
    processor.go.set()
    await finishing
    # then
    assert processor.peak == 3
    assert (run.done.line, run.done.succeeded, len(store.output)) == (10, 10, 10)


async def test_lines_in_hand_hold_a_bounded_number_of_bytes() -> None:
    # given: lines of 4 MiB, and room for many
    processor = _Counting()
    body = completion("x" * 4_000_000)
    lines = one_by_one(line_of(number, body) for number in range(1, 11))
    run = run_of(processor, _Stored(), 10)
    # when
    finishing = asyncio.create_task(run.finish(lines))
    await until(lambda: processor.in_hand == 4)
    processor.go.set()
    await finishing
    # then
    assert processor.peak == 4
    assert run.done.line == 10


async def test_answers_are_stored_in_the_order_of_the_lines_up_to_the_first_without_one() -> None:
    # given: the third line takes long
    processor, store = _Counting(), _Stored()
    processor.go.set()
    processor.slow[3] = asyncio.Event()
    run = run_of(processor, store, 4)
    # when
    finishing = asyncio.create_task(run.finish(numbered(20)))
    await until(lambda: store.lines == 2 and processor.in_hand == 0)
    processor.slow[3].set()
    await finishing
    # then
    assert store.checkpoints[0].line == 2
    assert store.lines == 20
    ids = [json.loads(record)["id"] for record in store.output]
    assert ids == [f"batch_req_1_{number}" for number in range(1, 21)]


async def test_lines_that_begin_alike_are_begun_together_and_stored_in_their_order() -> None:
    # given: lines of two kinds in turn
    begun: list[int] = []

    class _Noting(_Counting):
        async def process(self, line: Line, cancellation: CancellationToken) -> Answer:
            begun.append(line.number)
            return await super().process(line, cancellation)

    processor, store = _Noting(), _Stored()
    processor.go.set()
    kinds = [completion(kind * 40 + f"{number}") for number in range(1, 5) for kind in "ba"]
    lines = one_by_one(line_of(number, body) for number, body in enumerate(kinds, start=1))
    # when
    await run_of(processor, store, 4).finish(lines)
    # then
    assert begun == [2, 4, 1, 3, 6, 8, 5, 7]
    ids = [json.loads(record)["id"] for record in store.output]
    assert ids == [f"batch_req_1_{number}" for number in range(1, 9)]


async def test_a_line_that_takes_long_holds_up_those_far_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given
    monkeypatch.setattr("rose_gateway.batches.run._MAX_UNSTORED", 10)
    processor, store, read = _Counting(), _Stored(), []
    processor.go.set()
    processor.slow[1] = asyncio.Event()

    async def lines() -> AsyncGenerator[Line, None]:
        async for line in numbered(100):
            read.append(line.number)
            yield line

    # when
    finishing = asyncio.create_task(run_of(processor, store, 3).finish(lines()))
    await until(lambda: len(read) == 10)
    for _ in range(50):
        await asyncio.sleep(0)
    # then
    assert len(read) == 10
    processor.slow[1].set()
    await finishing
    assert store.lines == 100


@pytest.mark.parametrize("stores", [True, False])
async def test_a_run_that_is_cancelled_stores_what_it_has_if_it_is_to(stores: bool) -> None:
    # given: a line that is never answered, and a store that is not in a hurry
    processor, store = _Counting(), _Stored(every_s=math.inf)
    processor.go.set()
    processor.slow[5] = asyncio.Event()
    run = run_of(processor, store, 2, stores_when_cancelled=stores)
    finishing = asyncio.create_task(run.finish(numbered(5)))
    await until(lambda: run.done.line == 4)
    # when
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    # then
    assert store.lines == (4 if stores else 0)


async def test_a_file_that_cannot_be_read_ends_the_run() -> None:
    processor = _Counting()
    processor.go.set()

    async def lines() -> AsyncGenerator[Line, None]:
        yield line_of(1, {})
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await run_of(processor, _Stored(), 3).finish(lines())


async def test_a_store_that_cannot_write_ends_the_run() -> None:
    class Full(_Stored):
        async def store(self, *_: object) -> Checkpoint:
            raise OSError("full")

    processor = _Counting()
    processor.go.set()
    processor.slow[2] = asyncio.Event()
    with pytest.raises(OSError, match="full"):
        await run_of(processor, Full(), 3).finish(numbered(9))


def test_a_checkpoint_is_what_was_written() -> None:
    checkpoint = Checkpoint("b", "f", 3, 99, 2, 1, (Piece("o", 5), Piece("p", 6)), (Piece("e", 7),))

    assert Checkpoint.decode(checkpoint.encode()) == checkpoint
    newer = checkpoint.encode().replace(b'"version": 1', b'"version": 2')
    for foreign in (b"", b"[]", b"{}", newer):
        with pytest.raises(MalformedMessage):
            Checkpoint.decode(foreign)


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
            store = _Stored()
            run = run_of(processor, store, 8)
            finishing = asyncio.create_task(run.finish(numbered(40, 5)))
            await until(lambda: run.done.line > 0)
            # when
            proxy.answer = b"-LOADING Redis is loading the dataset in memory"
            proxy.cut_now()
            await until(lambda: processor.trouble)
            proxy.heal()
            await finishing
    # then
    assert (run.done.line, run.done.succeeded, len(store.output)) == (40, 40, 40)
