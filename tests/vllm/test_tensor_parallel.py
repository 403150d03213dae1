"""A model on two ranks, each a process of its own: what becomes of a job when one of them dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rose_cli.demo.broker import EmbeddedBroker
from rose_cli.demo.workers import WorkerProcess
from rose_producer import Client
from tests.chaos.engines import settings_of
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import running

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400), needs_redis_server]

START_S = 800.0
LONG = {"max_new_tokens": 600, "temperature": 0.8, "seed": 5, "ignore_eos": True}


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """Its processes, but for itself: their ids and what they call themselves."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            yield child, Path(f"/proc/{child}/comm").read_text().strip()
            yield from descendants(child)


def is_there(pid: int) -> bool:
    """A zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_job_goes_on_elsewhere_and_no_process_is_left(
    broker: EmbeddedBroker, queue: str, client: Client
) -> None:
    # given: two ranks, at work
    parallel = settings_of("vllm")
    parallel["vllm_args"] += " --tensor-parallel-size 2"
    place = {"queue": queue, "lease_s": 3, "reclaim_interval_s": 0.2}
    slow = {**place, **parallel, "min_step_s": 0.05}
    with WorkerProcess("two-ranks", broker.url, **slow) as first:
        first.wait_ready(START_S)
        assert first.pid is not None
        ours = dict(descendants(first.pid))
        ranks = sorted(pid for pid, name in ours.items() if "Worker" in name)
        assert len(ranks) == 2, ours
        job = client.submit("Once upon a time", **LONG)
        wait_until(lambda: running(job, tokens=20), START_S)
        # when
        os.kill(ranks[1], signal.SIGKILL)
        # then: the worker ends with an error, and its processes with it
        wait_until(lambda: not first.running, START_S)
        wait_until(lambda: not any(map(is_there, ours)), START_S)
        assert first.exit_status not in (0, None), first.log
        assert 20 <= job.status().tokens < LONG["max_new_tokens"]
    # and one of the other engine writes the rest
    with WorkerProcess("elsewhere", broker.url, **place, **settings_of("rose")) as second:
        second.wait_ready(START_S)
        result = job.result(START_S)
        assert [hand.worker for hand in job.status().hands] == ["two-ranks", "elsewhere"]
        undisturbed = client.submit("Once upon a time", **LONG).result(START_S)
    assert (result.token_ids, result.text) == (undisturbed.token_ids, undisturbed.text)
