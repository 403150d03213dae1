"""What a test can play."""

import asyncio
from typing import Any

import pytest
import redis

from rose.errors import (
    ConfigurationError,
    InvalidParameter,
    JobCancelled,
    JobFailed,
    ResultTimeout,
)
from rose.protocol import JobSpec
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import CancelledEvent, Client, FailedEvent, TokenEvent
from rose_producer.testing import Answer, FakeQueue
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until

pytest_plugins = ["rose_producer.testing.fixtures"]


@pytest.fixture
def client(rose_queue: FakeQueue) -> Client:
    """As a service makes one."""
    return Client()


def test_jobs_get_the_answers_in_order_and_then_the_same_one(
    rose_queue: FakeQueue, client: Client
) -> None:
    # given
    rose_queue.answers("One.", Answer(["T", "wo."]))
    # when
    texts = [client.submit(f"job {n}").result(90).text for n in range(4)]
    # then
    assert texts[:2] == ["One.", "Two."]
    assert texts[2] == texts[3] != ""
    assert [job.prompt for job in rose_queue.jobs] == [f"job {n}" for n in range(4)]


def test_an_answer_may_depend_on_the_job(rose_queue: FakeQueue, client: Client) -> None:
    def answer(job: JobSpec) -> str:
        return f"{job.messages[-1].content}, and {job.sampling.temperature}"

    rose_queue.answers_with(answer)
    chat = [{"role": "user", "content": "hello"}]
    assert client.submit(chat, temperature=0.5).result(90).text == "hello, and 0.5"


@pytest.mark.parametrize("error", [InvalidParameter("no such adapter"), JobFailed("out of luck")])
def test_a_job_may_fail_after_some_text(
    rose_queue: FakeQueue, client: Client, error: JobFailed | InvalidParameter
) -> None:
    # given
    rose_queue.answers(Answer("It is", error=error))
    job = client.submit("x")
    # when
    *tokens, end = job.stream(timeout_s=90)
    # then
    assert "".join(event.text for event in tokens if isinstance(event, TokenEvent)) == "It is"
    assert isinstance(end, FailedEvent)
    with pytest.raises(type(error), match=str(error)):
        job.result(90)


def test_an_answer_is_no_longer_than_was_asked(rose_queue: FakeQueue, client: Client) -> None:
    rose_queue.answers("one two three four")
    result = client.submit("x", max_new_tokens=2).result(90)
    assert (result.text, result.finish_reason) == ("one two", "length")


def test_a_job_is_written_by_hand(rose_queue: FakeQueue, client: Client) -> None:
    # given
    rose_queue.hold()
    job = client.submit("x")
    assert job.status().status == "queued"
    # when
    by_hand = rose_queue.take()
    stream = job.stream(timeout_s=90)
    # then: nothing comes but what is said
    assert by_hand.spec.id == job.id
    assert by_hand.say("a ", "b ")
    assert [next(stream).index for _ in range(2)] == [0, 1]
    by_hand.kill_worker()
    assert by_hand.say("c")
    by_hand.end("stop")
    assert [event.index for event in stream] == [2, 3]
    assert job.result(90).text == "a b c"
    assert job.result(90).finish_reason == "stop"


def test_who_writes_by_hand_sees_that_it_was_cancelled(
    rose_queue: FakeQueue, client: Client
) -> None:
    # given
    rose_queue.hold()
    job = client.submit("x")
    by_hand = rose_queue.take()
    by_hand.say("a")
    # when
    job.cancel()
    # then
    assert not by_hand.say("b")
    assert by_hand.ended
    *_, end = job.stream(timeout_s=90)
    assert isinstance(end, CancelledEvent)


def test_what_cannot_be_taken_says_so(rose_queue: FakeQueue) -> None:
    with pytest.raises(ConfigurationError, match="hold"):
        rose_queue.take()
    rose_queue.hold()
    with pytest.raises(ResultTimeout, match="no job came"):
        rose_queue.take(0.05)


def test_held_jobs_go_on_when_they_may(rose_queue: FakeQueue, client: Client) -> None:
    # given
    rose_queue.hold()
    jobs = [client.submit("x") for _ in range(3)]
    by_hand = rose_queue.take()
    # when
    rose_queue.resume()
    by_hand.end()
    # then
    assert [job.result(90).finish_reason for job in jobs] == ["eos"] * 3


async def test_it_serves_the_asyncio_client(rose_queue: FakeQueue) -> None:
    rose_queue.answers(*map(str, range(20)))
    async with rose_queue.async_client() as client:
        jobs = [await client.submit("x") for _ in range(20)]
        results = await asyncio.gather(*(job.result(90) for job in jobs))
    assert [result.text for result in results] == [*map(str, range(20))]


def test_each_test_has_an_empty_queue(rose_queue: FakeQueue, client: Client) -> None:
    assert rose_queue.jobs == ()
    assert client.queue_status().waiting["normal"] == 0


def test_a_cancel_between_a_look_and_a_write_ends_the_job(
    rose_queue: FakeQueue, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    rose_queue.hold()
    job = client.submit("x")
    opened = rose_queue.take()
    connection = opened._writer.redis
    look = connection.execute

    async def look_and_be_cancelled(*command: str | bytes | int) -> Any:
        reply = await look(*command)
        assert await asyncio.to_thread(job.cancel)
        return reply

    # when
    with monkeypatch.context() as patched:
        patched.setattr(connection, "execute", look_and_be_cancelled)
        went_on = opened.say("a", "b")
    # then
    assert not went_on
    with pytest.raises(JobCancelled):
        job.result(90)


def test_code_for_answers_that_raises_fails_its_job_and_the_queue_goes_on(
    rose_queue: FakeQueue, client: Client
) -> None:
    # given
    rose_queue.answers_with(lambda spec: {}["no such answer"])
    # when / then
    with pytest.raises(JobFailed, match="no such answer"):
        client.submit("x").result(90)
    rose_queue.answers("One.")
    assert client.submit("y").result(90).text == "One."


@needs_redis_server
def test_a_queue_whose_redis_is_gone_says_so_when_it_closes(own_redis: EmbeddedBroker) -> None:
    # given
    queue = FakeQueue(own_redis.url).__enter__()
    assert queue._serving is not None
    own_redis.stop()
    wait_until(queue._serving.done)
    # when / then
    with pytest.raises(ExceptionGroup) as raised:
        queue.__exit__()
    assert raised.group_contains(redis.ConnectionError)
