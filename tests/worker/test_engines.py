"""The promise with each engine that has a model, and with both on one queue.

Those with vLLM run by `make test-vllm`.
"""

import signal
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import redis

from rose.errors import DeadlineExceeded, JobFailed
from rose.protocol import Partition
from rose_cli.local.services import WorkerProcess
from rose_producer import CancelledEvent, Client, Job, Request, TokenEvent
from rose_worker.settings import WorkerSettings
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import StartWorker, has_no_jobs, running
from tests.support.engines import (
    FEATURES,
    SETTINGS,
    START_S,
    Answer,
    answers,
    differences,
    jobs,
    set_variables,
)
from tests.support.mortal_model import FAILS, KILLS

pytestmark = [needs_redis_server, pytest.mark.timeout(600)]

VLLM = pytest.mark.vllm
ENGINES = ["rose", pytest.param("vllm", marks=VLLM)]
MIXED = [pytest.param(a, b, marks=VLLM) for a, b in [("rose", "vllm"), ("vllm", "rose")]]

#: A job that still runs whatever the machine does meanwhile: at SLOW for half a minute.
LONG: dict[str, Any] = {"temperature": 0.9, "seed": 11, "ignore_eos": True}
LONG_TOKENS = 300
SLOW = {"min_step_s": 0.1}
SPECS = [*jobs(FEATURES), jobs([LONG], LONG_TOKENS)[0].model_copy(update={"id": "long"})]

Start = Callable[..., WorkerProcess]


@pytest.fixture(scope="module")
def undisturbed() -> Mapping[str, Answer]:
    """What roseinfer's own engine answers, without a queue."""
    from rose_worker.rose_engine import RoseEngine

    settings = WorkerSettings(device="cpu", max_batch_size=16, max_context=1024)
    return answers(RoseEngine(settings), SPECS)


@pytest.fixture
def start(start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a worker with an engine by its name; it is not ready yet."""
    set_variables()
    monkeypatch.setenv("ROSE_CUDA_GRAPHS", "false")

    def begin(engine: str, **settings: Any) -> WorkerProcess:
        return start_worker(ready=False, **{**SETTINGS[engine], "max_batch_size": 16, **settings})

    return begin


def submit_all(client: Client) -> dict[str, Job]:
    requests = [
        Request(spec.prompt, job_id=spec.id, sampling=spec.sampling.model_dump(exclude_unset=True))
        for spec in SPECS
    ]
    return {job.id: job for job in client.submit_many(requests)}


def assert_undisturbed(submitted: Mapping[str, Job], wanted: Mapping[str, Answer]) -> None:
    """Every stream is whole, and says what it would have said."""
    for job_id, job in submitted.items():
        assert differences(job.result(200), wanted[job_id]) == []
        events = [event for event in job.stream() if isinstance(event, TokenEvent)]
        assert [t for event in events for t in event.token_ids] == wanted[job_id].token_ids


def all_begun(submitted: Mapping[str, Job]) -> bool:
    statuses = [job.status() for job in submitted.values()]
    return all(status.tokens >= 3 or status.status == "finished" for status in statuses)


@pytest.mark.parametrize("engine", ENGINES)
def test_jobs_of_a_killed_worker_say_what_they_would_have_said(
    client: Client,
    start: Start,
    undisturbed: Mapping[str, Answer],
    raw: redis.Redis,
    partition: Partition,
    engine: str,
) -> None:
    # given
    victim = start(engine, **SLOW)
    victim.wait_ready()
    submitted = submit_all(client)
    heir = start(engine, max_batch_size=8)
    wait_until(lambda: all_begun(submitted), START_S)
    # when
    victim.kill()
    # then
    heir.wait_ready()
    assert_undisturbed(submitted, undisturbed)
    status = submitted["long"].status()
    assert status.worker == heir.name
    assert status.epoch >= 2
    assert has_no_jobs(raw, partition)


@pytest.mark.parametrize(("first", "second"), MIXED)
def test_engines_share_a_queue_and_one_that_sleeps_through_its_lease_adds_nothing(
    client: Client,
    start: Start,
    undisturbed: Mapping[str, Answer],
    first: str,
    second: str,
) -> None:
    # given
    sleeper = start(first, **SLOW)
    sleeper.wait_ready()
    submitted = submit_all(client)
    wait_until(lambda: all_begun(submitted), START_S)
    # when: it sleeps, the other engine takes over, it wakes up
    sleeper.signal(signal.SIGSTOP)
    heir = start(second)
    heir.wait_ready()
    wait_until(lambda: submitted["long"].status().epoch >= 2)
    sleeper.signal(signal.SIGCONT)
    # then
    assert_undisturbed(submitted, undisturbed)
    assert sleeper.running
    # and: it has forgotten them, and serves as before
    assert heir.terminate() == 0
    again = client.submit("Once upon a time there was a little fox", max_new_tokens=40)
    assert list(again.result(90).token_ids) == undisturbed["job-0"].token_ids
    assert again.status().worker == sleeper.name


@pytest.mark.parametrize("engine", ENGINES)
def test_jobs_end_before_their_time_and_a_drain_hands_back_the_rest(
    client: Client, start: Start, engine: str
) -> None:
    # given: one slot, and a job that would run for minutes
    worker = start(engine, max_batch_size=1, grace_s=0.2, **SLOW)
    worker.wait_ready()
    many = {"max_new_tokens": 900, "ignore_eos": True}
    long = client.submit("Once upon a time", **many)
    late = client.submit("Once upon a time", deadline_s=600, **many)
    wait_until(lambda: running(long, tokens=3))
    assert late.status().status == "queued"
    assert worker.metrics()["rose_batch_sequences"] == 1
    # when / then: cancelled, it makes room for the next one
    assert long.cancel()
    assert isinstance(list(long.stream(timeout_s=90))[-1], CancelledEvent)
    wait_until(lambda: running(late, tokens=1))
    late.cancel()
    # and: past its deadline, a job ends
    with pytest.raises(DeadlineExceeded):
        client.submit("Once upon a time", deadline_s=1, **many).result(90)
    # and: a drain hands back what runs and what waits
    kept = client.submit("Once upon a time", **many)
    wait_until(lambda: running(kept, tokens=2))
    waits = client.submit("Once upon a time", **many)
    assert worker.terminate() == 0
    assert [job.status().status for job in (kept, waits)] == ["queued", "queued"]
    assert kept.status().tokens >= 2


@pytest.mark.parametrize("engine", ENGINES)
def test_poison_kills_two_workers_and_no_other_job(
    client: Client, start: Start, undisturbed: Mapping[str, Answer], engine: str
) -> None:
    # given: two workers that a prompt kills, where two deaths are enough
    limits = {"max_attempts": 2, "program": ["tests.support.mortal_model"]}
    victims = [start(engine, **limits) for _ in range(2)]
    for victim in victims:
        victim.wait_ready()
    # when
    submitted = submit_all(client)
    poison = client.submit([KILLS, 8, 9], max_new_tokens=5)
    wait_until(lambda: not any(victim.running for victim in victims), START_S)
    # then
    start("rose", max_attempts=2)
    with pytest.raises(JobFailed, match="takes in a row lapsed"):
        poison.result(START_S)
    assert_undisturbed(submitted, undisturbed)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_that_fails_ends_its_process_and_its_jobs_go_on_elsewhere(
    client: Client, start: Start, engine: str
) -> None:
    # given
    worker = start(engine, program=["tests.support.mortal_model"])
    worker.wait_ready()
    # when
    job = client.submit([FAILS, 8, 9], max_new_tokens=5)
    wait_until(lambda: not worker.running)
    # then: not as if it had drained
    assert worker.terminate() != 0
    assert "allocate memory" in worker.log
    assert job.status().status == "running"
    heir = start("rose")
    assert len(job.result(START_S).token_ids) == 5
    assert job.status().worker == heir.name
