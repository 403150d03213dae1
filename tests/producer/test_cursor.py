"""The subscriber's logic alone: whatever arrives, each token is news once and in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidCursor, JobNotFound, MalformedMessage
from rose.protocol import Event
from rose_producer import FinishedEvent, TokenEvent
from rose_producer.cursor import LogCursor, Verdict


def token(index: int, count: int = 1) -> TokenEvent:
    return TokenEvent(index=index, token_ids=tuple(range(index, index + count)), text="x")


def end(index: int) -> FinishedEvent:
    return FinishedEvent(index=index, reason="eos", prompt_tokens=1)


def test_news_repeats_and_gaps_are_told_apart() -> None:
    cursor = LogCursor()
    assert cursor.judge(token(0)) is Verdict.NEWS
    assert cursor.judge(token(0)) is Verdict.REPEAT
    assert cursor.judge(token(2)) is Verdict.GAP
    assert cursor.judge(end(2)) is Verdict.GAP
    assert cursor.judge(token(1)) is Verdict.NEWS
    assert cursor.judge(end(2)) is Verdict.NEWS
    assert cursor.judge(end(2)) is Verdict.REPEAT
    assert cursor.ended


def test_a_cursor_inside_an_event_is_refused() -> None:
    with pytest.raises(InvalidCursor, match="inside"):
        LogCursor(1).judge(token(0, count=3))
    with pytest.raises(InvalidCursor):
        LogCursor(-1)


def test_a_hole_in_the_log_is_an_error_and_no_endless_search() -> None:
    with pytest.raises(MalformedMessage, match="lacks tokens 0 to 1"):
        LogCursor().judge_logged(token(2))


@pytest.mark.parametrize(
    ("position", "status", "logged", "error"),
    [
        (0, None, 0, JobNotFound),
        (9, "running", 3, InvalidCursor),
        (0, "finished", 3, JobNotFound),
    ],
)
def test_silence_of_the_log_is_explained(
    position: int, status: str | None, logged: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        LogCursor(position).check_silence(status, logged, "0-a")


# A busy machine is no reason to fail.
@given(st.data())
def test_any_mixture_of_log_and_channel_gives_every_token_once(data: st.DataObject) -> None:
    """A subscriber joins at any time, misses any messages, and gets others again and late."""
    # given
    sizes = data.draw(st.lists(st.integers(1, 3), max_size=8))
    log: list[Event] = []
    for size in sizes:
        log.append(token(log[-1].cursor if log else 0, size))
    log.append(end(log[-1].cursor if log else 0))
    cursor, received = LogCursor(), list[Event]()

    def replay(written: int) -> None:
        received.extend(e for e in log[:written] if cursor.judge_logged(e) is Verdict.NEWS)

    # when
    written = 0
    while not cursor.ended:
        written = data.draw(st.integers(written, len(log)))
        if data.draw(st.booleans()) or written == 0:
            replay(written)
            written = min(written + 1, len(log))
            continue
        event = log[data.draw(st.integers(0, written - 1))]
        match cursor.judge(event):
            case Verdict.NEWS:
                received.append(event)
            case Verdict.GAP:
                replay(written)
    # then
    assert received == log
