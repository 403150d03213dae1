"""A played queue and a real one are the same to a client: each test runs on both."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from rose.errors import (
    DeadlineExceeded,
    InvalidParameter,
    JobCancelled,
    JobNotFound,
    PromptTooLong,
    ResultTimeout,
)
from rose.protocol import JobSpec
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import Client, FinishedEvent, Job, TokenEvent
from rose_producer.testing import Answer, FakeQueue
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import echoed_text, running, serving

pytest_plugins = ["rose_producer.testing.fixtures"]

CONTEXT = 8192


@dataclass
class Subject:
    client: Client
    kill_worker: Callable[[Job], None]


def echo(spec: JobSpec, killed_after: tuple[int, ...] = ()) -> Answer:
    assert isinstance(spec.prompt, str)
    count = spec.sampling.max_new_tokens
    words = [f"{word} " for word in echoed_text(spec.prompt, count).split()]
    return Answer(words, pause_s=0.02, reason="length", killed_after=killed_after)


@pytest.fixture
def played(rose_queue: FakeQueue) -> Iterator[Subject]:
    rose_queue.answers_with(lambda spec: echo(spec, (3,) if "killed" in str(spec.prompt) else ()))
    with rose_queue.client() as client:
        yield Subject(client, lambda job: None)


@pytest.fixture
def real(own_redis: EmbeddedBroker, queue: str) -> Iterator[Subject]:
    settings = {"queue": queue, "min_step_s": 0.02, "max_batch_size": 64, "max_context": CONTEXT}
    with (
        serving("first", own_redis.url, **settings) as worker,
        Client(redis_url=own_redis.url, queue=queue) as client,
    ):
        others: list[WorkerProcess] = []

        def kill(job: Job) -> None:
            wait_until(lambda: running(job, 3))
            worker.kill()
            others.append(
                WorkerProcess("second", own_redis.url, engine="null", lease_s=1, **settings)
            )
            others[-1].__enter__()

        yield Subject(client, kill)
        for other in others:
            other.__exit__(None, None, None)


@pytest.fixture(params=["played", pytest.param("real", marks=needs_redis_server)])
def subject(request: pytest.FixtureRequest) -> Subject:
    found: Subject = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def client(subject: Subject) -> Client:
    return subject.client


def test_a_result_is_the_whole_answer(client: Client) -> None:
    result = client.submit("abc", max_new_tokens=4).result(90)
    assert (result.text, result.finish_reason) == (echoed_text("abc", 4), "length")
    assert len(result.token_ids) == 4
    assert result.prompt_tokens > 0


def test_a_stream_has_every_token_once_and_then_an_end(client: Client) -> None:
    # given
    job = client.submit("abc", max_new_tokens=6)
    # when
    *tokens, end = job.stream(timeout_s=90)
    # then
    assert [event.index for event in tokens] == [*range(6)]
    assert "".join(event.text for event in tokens if isinstance(event, TokenEvent)) == (
        echoed_text("abc", 6)
    )
    assert isinstance(end, FinishedEvent)


def test_a_reader_may_come_late_and_begin_anywhere(client: Client) -> None:
    # given
    job = client.submit("abc", max_new_tokens=6)
    job.result(90)
    # when / then
    for cursor in range(7):
        *tokens, _ = client.job(job.id).stream(cursor, timeout_s=90)
        assert [event.index for event in tokens] == [*range(cursor, 6)]


def test_a_killed_worker_costs_no_token(subject: Subject) -> None:
    # given
    job = subject.client.submit("killed", max_new_tokens=12)
    # when
    with closing(job.stream(timeout_s=90)) as stream:
        first = next(stream)
        subject.kill_worker(job)
        events = [first, *stream]
    # then
    text = "".join(event.text for event in events if isinstance(event, TokenEvent))
    assert text == echoed_text("killed", 12)


def test_a_running_job_is_cancelled(client: Client) -> None:
    # given
    job = client.submit("abc", max_new_tokens=2000)
    wait_until(lambda: running(job))
    # when
    assert job.cancel()
    # then
    with pytest.raises(JobCancelled):
        job.result(90)
    assert job.status().status == "cancelled"
    assert not job.cancel()


def test_the_same_key_is_the_same_job(client: Client) -> None:
    first, second = (
        client.submit("abc", idempotency_key="order-17", max_new_tokens=2) for _ in range(2)
    )
    assert first.id == second.id
    assert first.result(90) == second.result(90)


def test_a_deadline_ends_a_job(client: Client) -> None:
    job = client.submit("abc", max_new_tokens=2000, deadline_s=0.5)
    with pytest.raises(DeadlineExceeded):
        job.result(90)


def test_a_deleted_job_is_unknown(client: Client) -> None:
    # given
    job = client.submit("abc", max_new_tokens=1)
    job.result(90)
    # when
    job.delete()
    # then
    with pytest.raises(JobNotFound):
        job.status()
    with pytest.raises(JobNotFound):
        client.job("never-was").result(90)


def test_a_caller_s_patience_ends_and_the_job_goes_on(client: Client) -> None:
    # given
    job = client.submit("abc", max_new_tokens=20)
    # when / then
    with pytest.raises(ResultTimeout):
        job.result(0.1)
    assert job.result(90).text == echoed_text("abc", 20)


def test_what_is_wrong_is_told_before_it_is_enqueued(client: Client) -> None:
    with pytest.raises(InvalidParameter):
        client.submit("abc", temperature=-1)
    with pytest.raises(PromptTooLong):
        client.submit([1] * (CONTEXT + 1)).result(90)


def test_a_record_stays_with_its_job(client: Client) -> None:
    # given
    before = time.time()
    job = client.submit("abc", max_new_tokens=1, owner="team-7", record=b"page 3")
    job.result(90)
    # when
    record = job.record()
    # then
    assert (record.owner, record.record, record.status) == ("team-7", b"page 3", "finished")
    assert record.enqueued_ms is not None
    assert record.enqueued_ms >= (before - 60) * 1000


def test_a_model_and_its_workers_are_announced(client: Client) -> None:
    model = client.model()
    assert model is not None
    assert (model.context_tokens, model.chat) == (CONTEXT, True)
    assert client.queue_status().workers
