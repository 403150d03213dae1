"""The events of a request's jobs: a long log is no reason to hold up other streams."""

from collections.abc import AsyncIterator
from typing import Any, cast

from rose.protocol import Event, TokenEvent
from rose_gateway.http.request_context import RequestContext, enter_request
from rose_gateway.jobs.job_group import JobGroup
from rose_gateway.metrics import Metrics
from rose_producer import AsyncJob, JobRecord

TEXT = "x" * 200


class Logged:
    """A job whose log has two hundred tokens in one event."""

    id = "0-1"

    async def bursts(self, cursor: int) -> AsyncIterator[list[Event]]:
        assert cursor == 0
        tokens = tuple(range(200))
        lengths = (1,) * 200
        yield [TokenEvent(index=0, token_ids=tokens, text=TEXT, text_lengths=lengths)]


async def test_what_is_there_already_comes_in_small_pieces() -> None:
    # given
    enter_request(RequestContext("req_test"))

    async def on_end(ended: Any) -> None:
        raise AssertionError(f"nothing has ended: {ended}")

    jobs, state = [cast(AsyncJob, Logged())], cast(JobRecord, None)
    group = JobGroup(jobs, state, None, on_end=on_end, metrics=Metrics())
    # when
    bursts = [burst async for burst in group.bursts()]
    # then
    assert max(map(len, bursts)) <= 16
    assert [event.index for burst in bursts for _, event in burst] == [*range(200)]
