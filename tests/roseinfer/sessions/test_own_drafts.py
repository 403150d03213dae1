"""What a session keeps for its model's own head."""

import torch
from torch import Tensor

from roseinfer.sessions.own_drafts import MAX_OWN_DRAFTS, WINDOW, OwnDrafts


def rows(first: int, count: int) -> Tensor:
    return torch.arange(first, first + count).float()[:, None]


def test_what_was_not_read_comes_once_and_in_order() -> None:
    # given
    own = OwnDrafts([3])
    own.take(rows(0, 5), 0)
    own.take(rows(5, 2), 5)
    # when
    assert own.is_ready(8)
    first, unread = own.read()
    # then
    assert (first, own.length, own.slot) == (0, 7, 3)
    assert torch.equal(unread, rows(0, 7))
    # and
    own.take(rows(7, 1), 7)
    first, unread = own.read()
    assert (first, own.length) == (7, 8)
    assert torch.equal(unread, rows(7, 1))


def test_behind_a_gap_it_begins_anew() -> None:
    own = OwnDrafts([0])
    own.take(rows(0, 5), 0)
    assert own.is_ready(6)
    own.read()

    own.take(rows(40, 3), 40)

    assert own.length == 0
    assert own.read()[0] == 40
    assert own.length == 3


def test_it_keeps_a_window_of_what_is_not_read() -> None:
    # given a head that has read something, and then nothing for a long time
    own = OwnDrafts([0])
    own.take(rows(0, 3), 0)
    assert own.is_ready(4)
    own.read()
    for position in range(3, 3 + 2 * WINDOW):
        own.take(rows(position, 1), position)
    # when
    first, unread = own.read()
    # then
    assert len(unread) == own.length == WINDOW
    assert first == 3 + WINDOW
    assert torch.equal(unread, rows(first, WINDOW))


def test_a_prompt_gives_its_last_tokens_only() -> None:
    own = OwnDrafts([0])

    chunks = [(end, own.rows_wanted(end, known=1000, count=100)) for end in range(100, 1001, 100)]

    assert chunks[:7] == [(end, 0) for end in range(100, 701, 100)]
    assert sum(count for _, count in chunks) == WINDOW


def test_it_is_ready_only_behind_all_tokens_and_with_a_place() -> None:
    slots = [0]
    own, other = OwnDrafts(slots), OwnDrafts(slots)
    for each in (own, other):
        each.take(rows(0, 5), 0)

    assert not own.is_ready(5)
    assert own.is_ready(6)
    assert not other.is_ready(6)
    own.release()
    own.release()
    assert other.is_ready(6)
    assert slots == []


def test_rates_follow_answers_and_come_back() -> None:
    own = OwnDrafts([])
    before = own.acceptance(MAX_OWN_DRAFTS, least=0.1)
    # when the first draft of two is right again and again
    for _ in range(50):
        own.drafted = 2
        own.record(1)
    # then
    first, second = own.acceptance(2, least=0.0)
    assert first > 0.95
    assert second < 0.05
    assert own.acceptance(MAX_OWN_DRAFTS, least=0.15) == [first]
    # and when no more are made
    for _ in range(10_000):
        own.skip()
    after = own.acceptance(MAX_OWN_DRAFTS, least=0.1)
    assert all(abs(a - b) < 0.01 for a, b in zip(after, before, strict=True))
