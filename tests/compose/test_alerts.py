"""The shipped alerts in the shipped Prometheus, while containers die: they fire, and they stop."""

import time

from tests.compose.stack import Stack
from tests.support.bench import wait_until

#: What it takes to notice (15 s), to be sure (1 min), and some scrapes.
FIRES_S, STOPS_S = 180, 180
#: After this a worker counts as lost, and Prometheus has heard of it.
SILENT_S = 30

LOST = "max(rose_queue_lost_workers)"
#: Gateways are scraped too.
KNOWN, UP = 'count(up{job="rose-worker"})', 'sum(up{job="rose-worker"})'


def fires(stack: Stack, alert: str) -> None:
    wait_until(lambda: alert in stack.alerts(), FIRES_S)


def test_workers_that_die_are_noticed_one_and_all(stack: Stack) -> None:
    wait_until(lambda: stack.value(UP) == 2, 60)
    wait_until(lambda: not stack.alerts() & {"RoseWorkerLost", "RoseNoWorker"}, STOPS_S)
    first, second = stack.ids("worker")
    # when: its name leaves DNS with it
    stack.do("kill", first)
    # then
    fires(stack, "RoseWorkerLost")
    assert stack.value(KNOWN) == 1
    assert "RoseNoWorker" not in stack.alerts()
    # when
    stack.do("kill", second)
    # then
    fires(stack, "RoseNoWorker")
    # when
    stack.up()
    # then
    wait_until(lambda: not stack.alerts() & {"RoseWorkerLost", "RoseNoWorker"}, STOPS_S)


def test_a_worker_that_drains_is_no_loss(stack: Stack) -> None:
    wait_until(lambda: stack.value(LOST) is not None)
    before = stack.value(LOST)
    first, _ = stack.ids("worker")
    # when
    stack.do("stop", "--time", "80", first)
    wait_until(lambda: stack.value(UP) == 1, 60)
    # then: nor is it one when it would have been noticed
    time.sleep(SILENT_S)
    assert stack.value(LOST) == before


def test_a_frozen_worker_is_down(stack: Stack) -> None:
    wait_until(lambda: stack.value(UP) == 2, 60)
    first, _ = stack.ids("worker")
    # when
    stack.do("pause", first)
    # then
    fires(stack, "RoseWorkerDown")
    # when
    stack.do("unpause", first)
    # then
    wait_until(lambda: "RoseWorkerDown" not in stack.alerts(), STOPS_S)


def test_a_redis_that_is_gone_is_noticed(stack: Stack) -> None:
    (redis,) = stack.ids("redis")
    # when
    stack.do("stop", redis)
    # then
    fires(stack, "RoseWorkerNotReady")
    # when
    stack.up()
    # then
    wait_until(lambda: "RoseWorkerNotReady" not in stack.alerts(), STOPS_S)
