"""The one retry policy: how long, and when no longer."""

from unittest import mock

import pytest
import redis

from rose.errors import BrokerUnavailable
from rose.transport.failures import Backoff, Outage

BACKOFF = Backoff(first_s=0.1, longest_s=1.0)
LOST = redis.ConnectionError("lost")


def test_pauses_double_up_to_the_longest_and_jitter_takes_up_to_half() -> None:
    for failures, whole in [(1, 0.1), (2, 0.2), (4, 0.8), (5, 1.0), (100_000, 1.0)]:
        pauses = [BACKOFF.pause_s(failures) for _ in range(100)]
        assert all(whole / 2 <= pause <= whole for pause in pauses)
        assert len(set(pauses)) > 1


def test_an_outage_that_has_ended_is_forgotten() -> None:
    outage = Outage(BACKOFF)
    for _ in range(10):
        outage.next_pause_s(LOST)
    # when
    outage.end()
    # then
    assert outage.next_pause_s(LOST) <= 0.1


def test_waiting_ends_with_the_timeout_of_one_outage() -> None:
    outage = Outage(BACKOFF, timeout_s=60)
    with mock.patch("time.monotonic") as clock:
        # given: outages that are shorter, together longer
        for clock.return_value in (0, 50, 100, 150):
            outage.next_pause_s(LOST)
            outage.end()
        # when: one that goes on
        clock.return_value = 200
        outage.next_pause_s(LOST)
        clock.return_value = 261
        # then
        with pytest.raises(BrokerUnavailable, match="away for 60 s: lost"):
            outage.next_pause_s(LOST)


def test_nobody_waits_for_a_password_to_become_right() -> None:
    with pytest.raises(BrokerUnavailable, match="refuses the user or password"):
        Outage(BACKOFF, timeout_s=60).next_pause_s(redis.AuthenticationError("WRONGPASS"))
