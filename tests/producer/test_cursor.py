"""The subscriber's logic alone: whatever arrives, each token is news once and in order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.errors import InvalidCursor, JobNotFound, MalformedMessage, ResultTimeout
from rose.protocol import decode_event, encode_event
from rose_producer import CancelledEvent, Event, FailedEvent, FinishedEvent, TokenEvent
from rose_producer.cursor import LogCursor, Patience, Verdict
from tests.fuzz.messages import Fuzzer


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


def test_a_cursor_behind_the_end_of_the_job_is_refused() -> None:
    with pytest.raises(InvalidCursor, match="has ended after 3 tokens"):
        LogCursor(9).judge(end(3))


@pytest.mark.parametrize("event", [end(0), token(1, count=3)])
def test_what_was_delivered_and_is_gone_is_no_mistake_of_the_caller(event: Event) -> None:
    # given: two tokens were delivered
    cursor = LogCursor()
    assert cursor.judge_all_logged([token(0), token(1)]) == [token(0), token(1)]
    # when / then: the job began anew with another text, or was given up
    with pytest.raises(JobNotFound, match="2 tokens were delivered"):
        cursor.judge(event)
    with pytest.raises(JobNotFound, match="2 tokens were delivered"):
        cursor.check_silence("failed", 1, "0-a")


def test_tokens_that_a_failover_has_forgotten_are_waited_for() -> None:
    # given: two tokens were delivered
    cursor = LogCursor()
    cursor.judge_all_logged([token(0), token(1)])
    # when: the heir knows of one
    cursor.check_silence("running", 1, "0-a")
    # then: what is written again comes to nobody twice
    assert cursor.judge_all_logged([token(1), token(2)]) == [token(2)]


def test_a_hole_in_the_log_is_an_error_and_no_endless_search() -> None:
    with pytest.raises(MalformedMessage, match="lacks tokens 0 to 1"):
        LogCursor().judge_logged(token(2))


def test_what_the_log_has_before_a_hole_is_delivered_first() -> None:
    cursor = LogCursor()
    assert cursor.judge_all_logged([token(0), token(1), token(5)]) == [token(0), token(1)]
    with pytest.raises(MalformedMessage, match="lacks tokens 2 to 4"):
        cursor.judge_all_logged([token(5)])


def test_messages_that_are_there_together_are_judged_together_up_to_a_gap() -> None:
    # given: a repeat among them, and a gap before the last
    ready = iter([encode_event(event) for event in (token(0), token(1), token(5))])
    cursor = LogCursor()
    # when
    news, gap = cursor.judge_all_live(encode_event(token(0)), lambda: next(ready, None))
    # then
    assert news == [token(0), token(1)]
    assert gap
    assert cursor.judge_all_live(encode_event(token(2)), lambda: None) == ([token(2)], False)


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


#: Of each: entries written since the last step, whether the subscriber reads the log or hears a
#: message, and which message.
_STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 8)), min_size=8, max_size=30
)


@settings(max_examples=200)
@given(st.data())
def test_any_mixture_of_log_and_channel_gives_every_token_once(data: st.DataObject) -> None:
    """A subscriber joins at any time, misses any messages, and gets others again and late."""
    # given
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=8))
    log: list[Event] = []
    for size in sizes:
        log.append(token(log[-1].cursor if log else 0, size))
    log.append(end(log[-1].cursor if log else 0))
    cursor, received = LogCursor(), list[Event]()

    def replay(written: int) -> None:
        received.extend(e for e in log[:written] if cursor.judge_logged(e) is Verdict.NEWS)

    # when
    written = 0
    for written_more, replays, which in data.draw(_STEPS):
        written = min(written + written_more, len(log))
        if replays or written == 0:
            replay(written)
            continue
        event = log[which % written]
        match cursor.judge(event):
            case Verdict.NEWS:
                received.append(event)
            case Verdict.GAP:
                replay(written)
    replay(len(log))
    # then
    assert received == log


_fuzzer = Fuzzer(1)
_damaged = [_fuzzer.event() for _ in range(2000)]
_index = st.integers(0, 6)
_events: st.SearchStrategy[Event] = (
    st.builds(token, _index, st.integers(1, 3))
    | _index.map(end)
    | st.builds(CancelledEvent, index=_index)
    | st.builds(FailedEvent, index=_index, code=st.just("x"), message=st.just(""))
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
        except (InvalidCursor, JobNotFound):
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
    live: list[bytes] = []
    for event in [*map(token, range(4)), end(4)]:
        live += [encode_event(event)] * data.draw(st.integers(1, 3))
        live += data.draw(st.lists(st.sampled_from(_noise), max_size=3))
    # when
    cursor = LogCursor()
    news = [event for _, event in map(cursor.judge_live, live) if event is not None]
    # then
    assert [event.index for event in news] == [0, 1, 2, 3, 4]
    assert cursor.ended


def test_a_silent_stream_asks_less_and_less_until_an_event_comes() -> None:
    # given
    patience = Patience("j", None, 5, 60)
    # when
    waits = []
    for _ in range(6):
        waits.append(patience.wait_s())
        patience.found_nothing()
    # then
    for wait_s, whole_s in zip(waits, [5, 10, 20, 40, 60, 60], strict=True):
        assert 0.8 * whole_s <= wait_s <= whole_s
    # and when
    patience.restart()
    # then
    assert patience.wait_s() <= 5


def test_a_caller_s_time_ends_in_the_middle_of_a_long_wait() -> None:
    assert Patience("j", 3, 5, 60).wait_s() <= 3
    with pytest.raises(ResultTimeout, match="j has not ended"):
        Patience("j", 0, 5, 60).wait_s()
