"""A subscriber and a status page, fed by somebody who writes what he likes."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidCursor, JobNotFound, MalformedMessage
from rose.protocol import (
    CancelledEvent,
    Event,
    FailedEvent,
    FinishedEvent,
    TokenEvent,
    decode_event,
    encode_event,
)
from rose.protocol.status import (
    STATUS_FIELDS,
    JobStatus,
    QueueStatus,
    read_queue_status,
    read_standing,
    read_status,
)
from rose_producer.cursor import LogCursor
from tests.fuzz.messages import Fuzzer

_index = st.integers(0, 6)
_events: st.SearchStrategy[Event] = (
    st.builds(
        TokenEvent,
        index=_index,
        token_ids=st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple),
        text=st.just(""),
    )
    | st.builds(FinishedEvent, index=_index, reason=st.just("eos"), prompt_tokens=st.integers(0, 9))
    | st.builds(CancelledEvent, index=_index)
    | st.builds(FailedEvent, index=_index, code=st.just("x"), message=st.just(""))
)
_fuzzer = Fuzzer(1)
_damaged = [_fuzzer.event() for _ in range(2000)]
_values = (
    st.none()
    | st.binary(max_size=12)
    | st.sampled_from([b"0", b"12", b"-1", b"1.5", b"queued", b"9" * 5000])
)


def _is_noise(raw: bytes) -> bool:
    try:
        decode_event(raw)
    except MalformedMessage:
        return True
    return False


_noise = [raw for raw in _damaged if _is_noise(raw)]


@given(
    st.lists(_events.map(encode_event) | st.sampled_from(_damaged), max_size=30), st.integers(0, 3)
)
def test_no_event_is_delivered_twice_or_out_of_order(messages: list[bytes], start: int) -> None:
    # given
    cursor, expected, ended = LogCursor(start), start, False
    # when
    for raw in messages:
        try:
            _, news = cursor.judge_live(raw)
        except InvalidCursor:
            continue
        # then
        if news is not None:
            assert not ended
            assert news.index == expected
            expected, ended = news.cursor, news.is_terminal
    assert (cursor.position, cursor.ended) == (expected, ended)


@given(st.data())
def test_noise_takes_nothing_away_from_an_honest_stream(data: st.DataObject) -> None:
    # given: a job's own events, each a few times, with noise between them
    own = [TokenEvent(index=i, token_ids=(i,), text="") for i in range(4)]
    live: list[bytes] = []
    for event in [*own, FinishedEvent(index=4, reason="eos", prompt_tokens=1)]:
        live += [encode_event(event)] * data.draw(st.integers(1, 3))
        live += data.draw(st.lists(st.sampled_from(_noise), max_size=3))
    # when
    cursor = LogCursor()
    news = [event for _, event in map(cursor.judge_live, live) if event is not None]
    # then
    assert [event.index for event in news] == [0, 1, 2, 3, 4]
    assert cursor.ended


@given(st.lists(_values, min_size=len(STATUS_FIELDS), max_size=len(STATUS_FIELDS)))
def test_any_state_of_a_job_is_a_status_or_an_error(fields: list[bytes | None]) -> None:
    with contextlib.suppress(JobNotFound, MalformedMessage):
        assert isinstance(read_status("0-a", fields), JobStatus)
    with contextlib.suppress(MalformedMessage):
        status, tokens = read_standing("0-a", fields[:2])
        assert status is None or isinstance(tokens, int)


@given(tokens=_values, name=_values, context=_values, consumer=st.binary(max_size=9))
def test_any_state_of_a_queue_is_a_status_or_an_error(
    tokens: bytes | None, name: bytes | None, context: bytes | None, consumer: bytes
) -> None:
    held: list[Any] = [3, b"5-0", [[consumer, b"2"]]]
    reply = [[held, [0, b"", []], [1, b"", []]], 4, tokens or b"0", [name, context]]
    with contextlib.suppress(MalformedMessage):
        status = read_queue_status("q", [reply, reply])
        assert isinstance(status, QueueStatus)
        assert (status.running, status.dead_letters) == (4, 8)
