"""What a read of a log is made of: no more of it is decoded than its reader takes."""

from typing import Any

from rose.protocol import Partition, TokenEvent
from rose.protocol.codec import encode_event
from rose_producer.cursor import LogCursor, LogRead

COUNT = 1000


def replies(*indices: int) -> list[Any]:
    events = [TokenEvent(index=i, token_ids=(i,), text="x") for i in indices]
    entries = [[b"%d-0" % (e.index + 1), [b"event", encode_event(e)]] for e in events]
    return [[b"running", b"%d" % len(indices), None], entries]


def log_read() -> LogRead:
    return LogRead(Partition("q", 0), "job", LogCursor())


def test_a_long_log_is_decoded_piece_by_piece() -> None:
    # given
    read = log_read()
    pieces = read.new_events(replies(*range(100)), COUNT)
    # when
    first, has_no_more = next(pieces)
    # then
    assert 0 < len(first) < 100
    assert not has_no_more
    assert read.cursor.position == len(first)
    # and: the rest follows, each event once
    rest = list(pieces)
    indices = [event.index for news, _ in [(first, False), *rest] for event in news]
    assert indices == [*range(100)]
    assert [is_last for _, is_last in rest] == [False] * (len(rest) - 1) + [True]


def test_a_log_of_as_many_events_as_were_asked_for_may_have_more() -> None:
    pieces = list(log_read().new_events(replies(*range(100)), 100))
    assert not any(has_no_more for _, has_no_more in pieces)


def test_behind_a_hole_nothing_is_taken() -> None:
    # given: token 40 is missing
    read = log_read()
    # when
    pieces = list(read.new_events(replies(*range(40), *range(41, 100)), COUNT))
    # then
    assert [event.index for news, _ in pieces for event in news] == [*range(40)]
    assert not pieces[-1][1]


def test_a_log_that_is_read_again_is_followed_past_all_that_was_delivered() -> None:
    # given: a failover has forgotten all but ten of a hundred tokens, and they were written again
    read = log_read()
    assert len(list(read.new_events(replies(*range(100)), COUNT))) > 1
    read.cursor.doubt(10)
    # when
    pieces = list(read.new_events(replies(*range(10, 130)), COUNT))
    # then
    assert [event.index for news, _ in pieces for event in news] == [*range(100, 130)]
    assert pieces[-1][1]
