"""The subscriber's logic alone: whatever arrives, each token is news once and in order."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from rose.engine_records import TokenLogprob, text_lengths
from rose.errors import (
    AnswerChanged,
    MalformedMessage,
    ResultTimeout,
)
from rose.protocol import decode_event, encode_event
from rose_producer import CancelledEvent, Event, FailedEvent, FinishedEvent, TokenEvent
from rose_producer.cursor import LogCursor, Patience, Verdict
from tests.fuzz.messages import Fuzzer


def token(index: int, count: int = 1) -> TokenEvent:
    """Token n is n and says `n `."""
    texts = [f"{n} " for n in range(index, index + count)]
    return TokenEvent(
        index=index,
        token_ids=tuple(range(index, index + count)),
        text="".join(texts),
        text_lengths=text_lengths(texts),
    )


def other_token(index: int) -> TokenEvent:
    return TokenEvent(index=index, token_ids=(1000 + index,), text="other ")


def delivered(*events: Event) -> LogCursor:
    """The cursor of a stream that has these."""
    cursor = LogCursor()
    assert cursor.judge_all_logged(events) == list(events)
    return cursor


def read(cursor: LogCursor, log: Sequence[Event]) -> list[Event]:
    """What a stream gets of this log, as it reads it."""
    news: list[Event] = []
    while True:
        start = cursor.start
        entries = [event for event in log if event.cursor > start or event.is_terminal]
        news += cursor.judge_all_logged(entries)
        if cursor.start >= start:
            return news


def end(index: int) -> FinishedEvent:
    return FinishedEvent(index=index, reason="eos", prompt_tokens=1)


def test_who_comes_with_a_cursor_inside_an_event_gets_the_rest_of_it() -> None:
    # given: tokens of different lengths, one without text
    event = TokenEvent(
        index=8,
        token_ids=(5, 6, 7, 8),
        text="a bücd",
        logprobs=tuple(TokenLogprob(-float(n), ()) for n in range(4)),
        text_lengths=(2, 2, 0, 2),
    )
    # when
    rests = [LogCursor(cursor).judge_all_logged([event]) for cursor in (9, 10, 11)]
    # then
    assert [[(e.index, e.token_ids, e.text) for e in rest] for rest in rests] == [
        [(9, (6, 7, 8), "bücd")],
        [(10, (7, 8), "cd")],
        [(11, (8,), "cd")],
    ]
    assert [rest[0].logprobs[0].logprob for rest in rests] == [-1, -2, -3]
    assert [rest[0].text_lengths for rest in rests] == [(2, 0, 2), (0, 2), None]


@pytest.mark.parametrize(
    "ended", [CancelledEvent(index=1), FailedEvent(index=1, code="x", message="why")]
)
def test_a_job_that_ended_before_its_tokens_came_again_has_ended(ended: Event) -> None:
    # given: three tokens were delivered, of which a failover has forgotten two
    cursor = delivered(token(0), token(1), token(2))
    # when
    (news,) = read(cursor, [token(0), ended])
    # then
    assert news == structs.replace(ended, index=3)
    assert cursor.ended


@pytest.mark.parametrize(
    "log",
    [
        [token(0), other_token(1)],
        [token(0), other_token(1), other_token(2), other_token(3)],
        [token(0), structs.replace(token(1, count=3), token_ids=(9, 2, 3))],
        [token(0), token(1), end(2)],
    ],
)
def test_other_tokens_in_the_place_of_those_that_were_delivered_are_no_continuation(
    log: list[Event],
) -> None:
    # given: three tokens were delivered, of which a failover has forgotten two
    cursor = delivered(token(0), token(1), token(2))
    cursor.doubt()
    # when / then
    with pytest.raises(AnswerChanged, match=r"3 tokens were delivered.*from cursor 0"):
        read(cursor, log)


def test_what_is_published_again_with_other_tokens_is_read_in_the_log() -> None:
    # given
    cursor = delivered(token(0), token(1))
    # when
    news, gap = cursor.judge_all_live(encode_event(other_token(1)), lambda: None)
    # then
    assert (news, gap) == ([], True)
    with pytest.raises(AnswerChanged):
        read(cursor, [token(0), other_token(1), token(2)])


def test_what_is_written_again_in_other_portions_is_cut_where_the_stream_stands() -> None:
    # given: the events of tokens 0 to 2, 3 to 4, and 5
    cursor = delivered(token(0, 3), token(3, 2), token(5))
    # when: they come again with other boundaries
    news = read(cursor, [token(0, 4), token(4, 4), token(8)])
    # then
    assert [(event.index, event.token_ids, event.text) for event in news] == [
        (6, (6, 7), "6 7 "),
        (8, (8,), "8 "),
    ]


def test_a_message_that_begins_before_the_stream_s_position_sends_it_to_the_log() -> None:
    cursor = delivered(token(0, 3), token(3, 2))
    assert cursor.judge_all_live(encode_event(token(4, 3)), lambda: None) == ([], True)
    assert read(cursor, [token(0, 4), token(4, 3)]) == [token(5, 2)]


def test_a_hole_in_the_log_is_an_error_and_no_endless_search() -> None:
    with pytest.raises(MalformedMessage, match="lacks tokens 0 to 1"):
        LogCursor().judge_all_logged([token(2)])


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


def test_who_has_more_than_the_log_gets_the_end_that_came_before_it() -> None:
    # given
    cursor = LogCursor(9)
    # when
    cursor.check_silence("cancelled", 3, "0-a")
    # then: it is to be read from there
    assert cursor.start == 3
    assert read(cursor, [CancelledEvent(index=3)]) == [CancelledEvent(index=9)]


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
        received.extend(cursor.judge_all_logged(log[:written]))

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


def portions(tokens: int, sizes: Sequence[int]) -> list[Event]:
    """A log of so many tokens, in events of these sizes."""
    log: list[Event] = []
    for size in sizes:
        start = log[-1].cursor if log else 0
        if start < tokens:
            log.append(token(start, min(size, tokens - start)))
    return log


_SIZES = st.lists(st.integers(1, 4), min_size=40, max_size=40)


@settings(max_examples=300)
@given(st.data())
def test_a_stream_survives_any_number_of_failovers(data: st.DataObject) -> None:
    """Each forgets what came after some event, and what is forgotten comes in other portions."""
    # given
    text, cursor, log = "", LogCursor(), list[Event]()
    # when
    for _ in range(data.draw(st.integers(1, 5))):
        kept = data.draw(st.integers(0, len(log)))
        log = log[:kept]
        done = log[-1].cursor if log else 0
        total = data.draw(st.integers(done, 40))
        for event in portions(total - done, data.draw(_SIZES)):
            log.append(token(done + event.index, event.cursor - event.index))
            if data.draw(st.booleans()):
                text += "".join(event.text for event in read(cursor, log))
            if data.draw(st.booleans()):
                news, _ = cursor.judge_all_live(encode_event(log[-1]), lambda: None)
                text += "".join(event.text for event in news)
    position = cursor.position
    log = [*log, *(token(n) for n in range(log[-1].cursor if log else 0, 41)), end(41)]
    text += "".join(event.text for event in read(cursor, log) if isinstance(event, TokenEvent))
    # then
    assert position <= 40
    assert text == "".join(f"{n} " for n in range(41))
    assert cursor.ended


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
        _, news = cursor.judge_live(raw)
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
