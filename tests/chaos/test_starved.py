"""Waiting for a core is seen, and is no longer than the time in which it was looked for."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos import clock
from tests.chaos.starved import Starvation, waits_s
from tests.support.bench import wait_until

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not say who waits"
)
#: Both want the same core all the time.
_BUSY = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"


@pytest.mark.parametrize("process", ["worker-0", None])
def test_two_that_want_one_core_wait_in_turn(process: str | None) -> None:
    # given
    with ExitStack() as stack:
        both = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(2)]
        for one in both:
            stack.callback(one.wait)
            stack.callback(one.kill)
        starvation, began = Starvation(process), clock.now()
        # when
        wait_until(lambda: (starvation.look(both[0].pid), len(starvation.spans) > 3)[1])
    # then
    ends = [began, *(at for span in starvation.spans for at in (span.began, span.ended))]
    assert ends == sorted(ends)
    assert {span.process for span in starvation.spans} == {process}
    assert starvation.spans[-1].ended <= clock.now()


def test_who_is_dead_waits_for_nothing() -> None:
    # given
    starvation = Starvation("worker-0")
    starvation.look(os.getpid())
    # when
    starvation.look(None)
    # then
    assert starvation.spans == []
    assert waits_s(2**22 + 1) == {}
