"""Containers killed, paused, stopped and cut off, Redis' too: streams go on, exactly once."""

import time

import pytest

from tests.compose.stack import Stack
from tests.compose.streams import Streams
from tests.support.bench import wait_until

Answers = list[tuple[int, ...]]

#: Longer than a lease, 10 s.
BEYOND_THE_LEASE_S = 14


@pytest.fixture
def streams(stack: Stack, undisturbed: Answers) -> Streams:
    """In mid-sentence, on both workers."""
    streams = Streams(stack.settings)
    assert streams.in_mid_sentence == len(streams.jobs)
    return streams


def test_a_killed_worker(stack: Stack, streams: Streams, undisturbed: Answers) -> None:
    victim, _ = stack.ids("worker")
    # when
    stack.do("kill", victim)
    # then
    assert streams.in_mid_sentence
    assert streams.answers() == undisturbed
    assert stack.state(victim)["ExitCode"] == 137


def test_a_crashed_worker_is_started_again(
    stack: Stack, streams: Streams, undisturbed: Answers
) -> None:
    victim, _ = stack.ids("worker")
    before = stack.inspect(victim)["RestartCount"]
    # when
    stack.crash(victim)
    # then
    assert streams.answers() == undisturbed
    wait_until(lambda: stack.worker_says(victim, "/readyz"))
    assert stack.inspect(victim)["RestartCount"] == before + 1


@pytest.mark.parametrize("service", ["worker", "redis"])
def test_a_service_that_is_paused_beyond_the_lease(
    stack: Stack, streams: Streams, undisturbed: Answers, service: str
) -> None:
    victim, *_ = stack.ids(service)
    # when
    stack.do("pause", victim)
    time.sleep(BEYOND_THE_LEASE_S)
    stack.do("unpause", victim)
    # then
    assert streams.answers() == undisturbed
    assert stack.state(victim)["Running"]


def test_a_worker_that_is_cut_off_from_the_network(
    stack: Stack, streams: Streams, undisturbed: Answers
) -> None:
    victim, _ = stack.ids("worker")
    before = stack.inspect(victim)["RestartCount"]
    # when
    stack.cut_off(victim)
    # then: the other one has them all
    assert streams.answers() == undisturbed
    wait_until(lambda: not stack.worker_says(victim, "/readyz"), 60)
    assert stack.worker_says(victim, "/healthz")
    # and: back, it is well by itself
    stack.reconnect(victim, "worker")
    wait_until(lambda: stack.worker_says(victim, "/readyz"), 60)
    assert stack.inspect(victim)["RestartCount"] == before


def test_a_worker_that_is_stopped_drains(
    stack: Stack, streams: Streams, undisturbed: Answers
) -> None:
    victim, _ = stack.ids("worker")
    # when
    began = time.monotonic()
    stack.do("stop", "--time", "80", victim)
    # then
    assert time.monotonic() - began < 40
    assert stack.state(victim)["ExitCode"] == 0
    assert "drained" in stack.do("logs", victim)
    assert streams.answers() == undisturbed
    assert set(streams.attempts()) == {1}


def test_a_redis_that_crashes_is_started_again_and_has_lost_nothing(
    stack: Stack, streams: Streams, undisturbed: Answers
) -> None:
    (redis,) = stack.ids("redis")
    before = stack.inspect(redis)["RestartCount"]
    for crashes in (1, 2):
        # when
        stack.crash(redis)
        # then
        wait_until(lambda: stack.inspect(redis)["RestartCount"] == before + crashes)  # noqa: B023
        wait_until(lambda: stack.health(redis) == "healthy")
    assert streams.answers() == undisturbed
    assert "AOF-loading-client" not in stack.do("logs", redis)


def test_a_redis_that_is_stopped_and_started(
    stack: Stack, streams: Streams, undisturbed: Answers
) -> None:
    (redis,) = stack.ids("redis")
    # when
    stack.do("stop", redis)
    assert stack.state(redis)["ExitCode"] == 0
    stack.do("start", redis)
    # then
    assert streams.answers() == undisturbed


def test_a_redis_that_is_cut_off_from_the_network(
    stack: Stack, streams: Streams, undisturbed: Answers
) -> None:
    (redis,) = stack.ids("redis")
    # when
    stack.cut_off(redis)
    time.sleep(BEYOND_THE_LEASE_S)
    stack.reconnect(redis, "redis")
    # then
    assert streams.answers() == undisturbed
