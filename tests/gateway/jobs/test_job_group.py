"""The events of a request's jobs: a long log is no reason to hold up other streams."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from rose.engine_records import TokenLogprob
from rose.protocol import Event, TokenEvent
from rose_gateway.access.authentication import RequestContext, enter_request
from rose_gateway.jobs.job_group import JobGroup
from rose_gateway.metrics import Metrics
from rose_gateway.pacing import LoopPacer
from rose_producer import AsyncJob, JobRecord

TEXT = "x" * 200


class Logged:
    """A job whose log has two hundred tokens in one event."""

    id = "0-1"

    begun = 0
    """logs that are being read"""

    def __init__(self, *, detailed: bool = False) -> None:
        self._logprobs = (TokenLogprob(-1.0, ()),) * 200 if detailed else None

    async def bursts(self, cursor: int) -> AsyncIterator[list[Event]]:
        assert cursor == 0
        Logged.begun += 1
        tokens = tuple(range(200))
        lengths = (1,) * 200
        yield [
            TokenEvent(
                index=0,
                token_ids=tokens,
                text=TEXT,
                logprobs=self._logprobs,
                text_lengths=lengths,
            )
        ]


async def on_end(ended: Any) -> None:
    raise AssertionError(f"nothing has ended: {ended}")


def group(pacer: LoopPacer, *, detailed: bool = False) -> JobGroup:
    jobs, state = (
        [cast(AsyncJob, Logged(detailed=detailed))],
        JobRecord("0-1", "", b"", "finished", 200, False, 0, 0, 0),
    )
    return JobGroup(jobs, state, None, on_end=on_end, metrics=Metrics(), pacer=pacer)


@pytest.mark.parametrize(("detailed", "most"), [(False, 64), (True, 16)])
async def test_what_is_there_already_comes_in_small_pieces(detailed: bool, most: int) -> None:
    # given
    enter_request(RequestContext("req_test"))
    # when
    bursts = [burst async for burst in group(LoopPacer(), detailed=detailed).bursts()]
    # then
    assert max(map(len, bursts)) == most
    assert [event.index for burst in bursts for _, event in burst] == [*range(200)]


async def test_many_replays_give_way_to_others_after_each_piece() -> None:
    # given
    enter_request(RequestContext("req_test"))
    pacer, pieces, Logged.begun = LoopPacer(), 0, 0

    async def replay() -> None:
        nonlocal pieces
        async for _ in group(pacer).bursts():
            pieces += 1

    # when: somebody else has to do with each round of the event loop
    replays = asyncio.gather(*(replay() for _ in range(50)))
    between = []
    while not replays.done():
        before = Logged.begun + pieces
        await asyncio.sleep(0)
        between.append(Logged.begun + pieces - before)
    await replays
    # then
    assert pieces == 50 * 4
    assert max(between) == 1
