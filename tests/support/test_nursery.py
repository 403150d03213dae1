"""What the tests start ends with them, even where a time limit kills them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import needs_redis_server
from tests.support.bench import wait_until

_STARTS = """
import sys
from rose_cli.demo.broker import EmbeddedBroker
from tests.support.gateway import running_deployment
from tests.support.nursery import forking
with forking(), EmbeddedBroker(fake=False) as broker, running_deployment(broker.url, "q") as one:
    print(broker.pid, one.gateway.pid, one.workers[0].pid, flush=True)
    sys.stdin.read()
"""


@needs_redis_server
@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_services_end_with_the_tests_that_are_killed() -> None:
    # given
    pipe = subprocess.PIPE
    tests = subprocess.Popen([sys.executable, "-c", _STARTS], stdin=pipe, stdout=pipe, text=True)
    assert tests.stdout is not None
    services = [int(word) for word in tests.stdout.readline().split()]
    assert len(services) == 3
    assert all(_runs(pid) for pid in services)
    # when
    tests.kill()
    tests.communicate()
    # then
    wait_until(lambda: not any(_runs(pid) for pid in services))


def _runs(pid: int) -> bool:
    """A zombie does not: who adopts it may never ask for it."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
