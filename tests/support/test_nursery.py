"""What the tests start ends with them, even where a time limit kills them."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import needs_redis_server
from tests.support.bench import wait_until

_STARTS = """
import os, subprocess, sys
from functools import partial
from tests.support.children import end_with
from tests.support.clocks import SKEWED_WORKER
from tests.support.echo import serving
from tests.support.gateway import running_deployment
from tests.support.nursery import forking
from tests.support.sentinel import LocalSentinel
with (
    forking(),
    LocalSentinel({"repl-diskless-sync-delay": "0"}) as servers,
    running_deployment(servers.url, "q"),
    serving("late", servers.url, queue="q", program=SKEWED_WORKER),
):
    subprocess.Popen(["sleep", "600"], preexec_fn=partial(end_with, os.getpid()))
    print("ready", flush=True)
    sys.stdin.read()
"""


@needs_redis_server
@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_services_end_with_the_tests_that_are_killed() -> None:
    # given: of each kind, forked and executed
    pipe, environment = subprocess.PIPE, {**os.environ, "SKEW_S": "60"}
    tests = subprocess.Popen(
        [sys.executable, "-c", _STARTS], stdin=pipe, stdout=pipe, text=True, env=environment
    )
    assert tests.stdout is not None
    assert tests.stdout.readline() == "ready\n"
    # what forks, two servers and their Sentinel, a gateway, two workers, and another program
    services = _children(tests.pid)
    assert len(services) >= 8
    # when
    tests.kill()
    tests.communicate()
    # then
    wait_until(lambda: not any(_runs(pid) for pid in services))


def _children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            if f"\nPPid:\t{parent}\n" in status.read_text():
                found.append(int(status.parent.name))
    return found


def _runs(pid: int) -> bool:
    """A zombie does not: who adopts it may never ask for it."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
