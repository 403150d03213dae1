"""How containers start, stop, are made anew, and what they leave behind."""

import re
import time

import pytest

from tests.compose.docker import Docker
from tests.compose.images import OURS
from tests.compose.stack import Stack
from tests.support.bench import wait_until


def test_nothing_runs_as_root_or_may_write_to_its_image(stack: Stack) -> None:
    for container in stack.all():
        shown = stack.inspect(container)
        assert shown["Config"]["User"] not in ("", "0", "root")
        assert shown["HostConfig"]["ReadonlyRootfs"]
        assert shown["HostConfig"]["CapDrop"] == ["ALL"]
        assert shown["HostConfig"]["LogConfig"]["Config"]["max-size"] == "10m"


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.3, 0.6, 1.0, 2.0])
def test_a_worker_that_is_stopped_as_it_starts_stops(stack: Stack, after_s: float) -> None:
    worker, _ = stack.ids("worker")
    stack.do("stop", worker)
    # when
    stack.do("start", worker)
    time.sleep(after_s)
    stack.do("stop", "--time", "100", worker)
    # then: nobody had to kill it, though one that loads its model finishes that first
    assert stack.state(worker)["ExitCode"] in (0, 143)


def test_pid_1_without_an_init_ends_at_sigterm(stack: Stack, docker: Docker) -> None:
    """As where somebody runs the command itself in a container of his own."""
    url = "ROSE_REDIS_URL=redis://nobody-is-there:6379/0"
    words = ("--env", url, "--network", "none", "--entrypoint", "rose", OURS)
    container = docker("run", "--detach", *words, "load", "--rate", "1")
    try:
        handles = "grep -q '^SigCgt:.*[4-7c-f]...$' /proc/1/status"
        wait_until(lambda: docker.answers("exec", container, "sh", "-c", handles), 30)
        # when
        began = time.monotonic()
        docker("stop", "--time", "60", container)
        # then
        assert time.monotonic() - began < 30
    finally:
        docker("rm", "--force", container)


def test_a_worker_that_is_made_anew_leaves_no_volume_behind(stack: Stack, docker: Docker) -> None:
    before = set(docker("volume", "ls", "--quiet").split())
    # when
    stack.up("--force-recreate", "--renew-anon-volumes")
    # then
    assert set(docker("volume", "ls", "--quiet").split()) == before


def test_every_container_starts_again_after_a_restart(stack: Stack) -> None:
    for _ in range(2):
        # when
        stack.do("restart", *stack.all())
        # then: runc before 1.1.8 forgets the options of a tmpfs at the second start
        wait_until(lambda: all(stack.health(one) == "healthy" for one in stack.all()), 300)


def test_the_load_profile_submits_and_stops_at_once(stack: Stack) -> None:
    # when
    stack.compose("--profile", "load", "up", "--detach", "--no-build", "--no-deps", "load")
    (load,) = stack.ids("load")
    try:
        wait_until(lambda: re.search(r" [1-9]\d* finished", stack.do("logs", load)))
        assert stack.state(load)["Running"]
        began = time.monotonic()
        stack.do("stop", "--time", "60", load)
        # then
        assert time.monotonic() - began < 30
    finally:
        stack.do("rm", "--force", load)
