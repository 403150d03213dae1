"""A stream that is cut anywhere and resumed there has no seam, however its choices take turns."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.protocol import CancelledEvent, Event, FailedEvent, FinishedEvent, TokenEvent
from rose_gateway.answers.rendering import AnswerHeader, Positions, streamed
from rose_gateway.chat.endpoint import ChatChunks
from rose_gateway.chat.schema import ChatParameters
from rose_gateway.jobs.job_group import Burst, JobGroup
from rose_gateway.models.catalogue import Vocabulary
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.tools.tools import CallForm
from tests.support.event_stream import SentEvent, events_of


class Job(NamedTuple):
    id: str


class Logged:
    """As a job group whose jobs have these logs. `order`: whose event comes next."""

    record = None

    def __init__(self, logs: list[list[Event]], order: list[int]) -> None:
        self.jobs = [Job(f"0-a.{number}") for number in range(len(logs))]
        self._logs = logs
        self._order = order

    async def bursts(self) -> AsyncGenerator[Burst, None]:
        left = [list(log) for log in self._logs]
        order = [*self._order, *range(len(left))]
        while any(left):
            choice = next(number for number in order if left[number % len(left)]) % len(left)
            order.pop(0) if len(order) > len(left) else None
            yield [(choice, left[choice].pop(0))]


@st.composite
def log(draw: st.DrawFn) -> list[Event]:
    events: list[Event] = []
    cursor = 0
    for text in draw(st.lists(st.text(max_size=6), max_size=6)):
        size = draw(st.integers(1, 3))
        ids = tuple(range(cursor, cursor + size))
        events.append(TokenEvent(index=cursor, token_ids=ids, text=text))
        cursor += size
    return [*events, FinishedEvent(index=cursor, reason="eos", prompt_tokens=3)]


def sent(
    parameters: ChatParameters, logs: list[list[Event]], order: list[int], last: str | None = None
) -> list[SentEvent]:
    group = Logged(logs, order)
    chunks = ChatChunks(
        parameters, AnswerHeader([job.id for job in group.jobs], "m", 1), Vocabulary()
    )
    after = None if last is None else Positions.read(last, len(logs))

    async def run() -> bytes:
        return b"".join([data async for data in streamed(cast("JobGroup", group), chunks, after)])

    return list(events_of(iter(asyncio.run(run()).decode().split("\n"))))


def deltas(events: list[SentEvent], choices: int) -> list[list[Any]]:
    """Of each choice, and at the end what is of none."""
    made: list[list[Any]] = [[] for _ in range(choices + 1)]
    for event in events:
        shown = [] if event.data == "[DONE]" else event.json["choices"]
        for choice in shown:
            made[choice["index"]].append(choice)
        if not shown:
            made[-1].append(event.data)
    return made


@given(
    logs=st.lists(log(), min_size=1, max_size=3),
    orders=st.tuples(*[st.lists(st.integers(0, 2), max_size=12)] * 2),
    cut=st.integers(0, 40),
    usage=st.booleans(),
    form=st.sampled_from([CallForm(), CallForm("hermes", ("f",)), CallForm("named", ("f",))]),
)
def test_a_cut_stream_goes_on_without_a_seam(
    logs: list[list[Event]], orders: tuple[list[int], list[int]], cut: int, usage: bool, form: Any
) -> None:
    parameters = ChatParameters(form=form, include_usage=usage)
    first = sent(parameters, logs, orders[0])
    cut = min(cut, len(first) - 2)

    rest = sent(parameters, logs, orders[1], first[cut].id)

    begun = deltas(first[: cut + 1], len(logs))
    gone_on = deltas(rest, len(logs))
    whole = deltas(first, len(logs))
    assert [a + b for a, b in zip(begun, gone_on, strict=True)] == whole
    if len(logs) == 1:
        assert rest == first[cut + 1 :]


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (CancelledEvent(index=1), "cancelled"),
        (FailedEvent(index=1, code="crash_loop", message="it died"), "crash_loop"),
    ],
)
def test_a_failure_ends_the_stream_and_is_told_once(end: Event, code: str) -> None:
    events: list[Event] = [TokenEvent(index=0, token_ids=(1,), text="a"), end]

    first = sent(ChatParameters(include_usage=True), [events], [])

    assert first[-1].json["error"]["code"] == code
    assert sent(ChatParameters(), [events], [], first[-2].id) == first[-1:]
    assert Positions.read(str(first[-1].id), 1).all_done


def test_positions_are_read_as_they_are_written() -> None:
    for text in ("0-0", "12-1,7-0", "3-2,3-2,3-2"):
        assert str(Positions.read(text, text.count(",") + 1)) == text
    with pytest.raises(BadRequest):
        Positions.read("1-0", 2)
