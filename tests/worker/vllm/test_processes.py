"""A worker whose vLLM has processes of its own, one for each rank."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from rose_producer import Client
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import StartWorker, running
from tests.support.engines import SETTINGS, START_S, set_variables

pytestmark = [pytest.mark.vllm, needs_redis_server, pytest.mark.timeout(600)]


def descendants(pid: int) -> set[int]:
    """Processes below `pid`, as long as those between live."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(stat.parent.name)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def alive(pids: set[int]) -> set[int]:
    living = set()
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                living.add(pid)
    return living


def signal_all(pids: set[int], signum: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)


def test_ranks_that_hang_are_a_stall_and_none_outlives_its_worker(
    client: Client, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: two ranks, and a job that has begun
    set_variables()
    monkeypatch.setenv("ROSE_CUDA_GRAPHS", "false")
    settings = {**SETTINGS["vllm"], "vllm_args": "--tensor-parallel-size 2"}
    worker = start_worker(
        ready=False, stall_timeout_s=10, max_attempts=1000, min_step_s=0.1, **settings
    )
    worker.wait_ready(START_S)
    prompt, sampling = "Once upon a time", {"max_new_tokens": 200, "temperature": 0.9, "seed": 3}
    job = client.submit(prompt, ignore_eos=True, **sampling)
    wait_until(lambda: running(job, tokens=3), START_S)
    assert worker.pid is not None
    ranks = descendants(worker.pid)
    assert len(ranks) >= 2
    # when: they stop, as a collective operation that never ends
    signal_all(ranks, signal.SIGSTOP)
    try:
        wait_until(lambda: worker.http("/healthz") is None, START_S)
        # then: its leases lapse, and the other engine goes on with the text
        heir = start_worker(max_attempts=1000, **SETTINGS["rose"])
        result = job.result(START_S)
        assert job.status().worker == heir.name
        again = client.submit(prompt, ignore_eos=True, **sampling)
        assert result.token_ids == again.result(START_S).token_ids
        # and: when it is killed, nothing of it is left
        worker.kill()
    finally:
        signal_all(ranks, signal.SIGCONT)
    wait_until(lambda: not alive(ranks), START_S)
