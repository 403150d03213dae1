"""A model on two ranks, each a process of its own: what becomes of a job when one of them dies, one
hangs, or the worker dies."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import Client, Job
from tests.chaos.engines import settings_of
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import running

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400), needs_redis_server]

START_S = 800.0
LONG = {"max_new_tokens": 600, "temperature": 0.8, "seed": 5, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class TwoRanks:
    """A worker with two ranks, in the middle of a job."""

    worker: WorkerProcess
    job: Job
    ranks: list[int]
    processes: list[int]
    """all that the worker has started"""

    @property
    def left(self) -> list[int]:
        """Processes that have not ended."""
        return [pid for pid in self.processes if is_there(pid)]


@pytest.fixture
def place(queue: str) -> dict[str, str | float]:
    return {"queue": queue, "lease_s": 3, "reclaim_interval_s": 0.2}


@pytest.fixture
def at_work(
    broker: EmbeddedBroker,
    client: Client,
    place: dict[str, str | float],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[TwoRanks]:
    # A rank of several has torch compile what finds its part of the vocabulary: for a minute.
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    settings = place | settings_of("vllm") | {"stall_timeout_s": 3, "min_step_s": 0.05}
    settings["vllm_args"] += " --tensor-parallel-size 2"
    with WorkerProcess("two-ranks", broker.url, **settings) as worker:
        worker.wait_ready()
        assert worker.pid is not None
        processes = dict(descendants(worker.pid))
        ranks = sorted(pid for pid, name in processes.items() if "Worker" in name)
        assert len(ranks) == 2, processes
        job = client.submit("Once upon a time", **LONG)
        wait_until(lambda: running(job, tokens=20), START_S)
        yield TwoRanks(worker, job, ranks, list(processes))
        for pid in ranks:
            if is_there(pid):
                os.kill(pid, signal.SIGKILL)


def assert_finished_elsewhere(
    job: Job, broker: EmbeddedBroker, client: Client, place: dict[str, str | float]
) -> None:
    """By one of the other engine, as if nothing had happened."""
    assert 20 <= job.status().tokens < LONG["max_new_tokens"]
    with WorkerProcess("elsewhere", broker.url, **place, **settings_of("rose")) as worker:
        worker.wait_ready()
        result = job.result(START_S)
        assert [writer.worker for writer in job.status().writers] == ["two-ranks", "elsewhere"]
        undisturbed = client.submit("Once upon a time", **LONG).result(START_S)
    assert (result.token_ids, result.text) == (undisturbed.token_ids, undisturbed.text)


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


def test_a_rank_is_killed(
    at_work: TwoRanks, broker: EmbeddedBroker, client: Client, place: dict[str, str | float]
) -> None:
    # when
    os.kill(at_work.ranks[1], signal.SIGKILL)
    # then: the worker ends with an error, and its processes with it
    wait_until(lambda: not at_work.worker.running, START_S)
    wait_until(lambda: not at_work.left, START_S)
    assert at_work.worker.exit_status not in (0, None), at_work.worker.log
    assert_finished_elsewhere(at_work.job, broker, client, place)


def test_a_rank_hangs_and_the_worker_is_told_to_end(
    at_work: TwoRanks, broker: EmbeddedBroker, client: Client, place: dict[str, str | float]
) -> None:
    # when
    os.kill(at_work.ranks[1], signal.SIGSTOP)
    # then: the step never ends, and others go on
    wait_until(lambda: at_work.worker.http("/healthz") is None, START_S)
    assert at_work.worker.running
    assert_finished_elsewhere(at_work.job, broker, client, place)
    # and: told to end, as whoever asks /healthz does, it ends the rank that hangs
    at_work.worker.signal(signal.SIGTERM)
    wait_until(lambda: not at_work.worker.running, START_S)
    wait_until(lambda: not at_work.left, START_S)


def test_the_worker_is_killed_while_a_rank_hangs(at_work: TwoRanks) -> None:
    # given: one rank hangs, and the other waits for it in the step that they share
    hangs, waits = at_work.ranks
    os.kill(hangs, signal.SIGSTOP)
    wait_until(lambda: at_work.worker.http("/healthz") is None, START_S)
    # when
    at_work.worker.kill()
    # then
    wait_until(lambda: not is_there(waits), START_S)
    os.kill(hangs, signal.SIGCONT)
    wait_until(lambda: not at_work.left, START_S)
