"""Jobs that cannot run, that kill, or whose keys others have written to."""

import time
from collections.abc import Callable

import msgpack
import pytest
import redis

from rose.errors import JobFailed, PromptTooLong
from rose.protocol import Partition, Priority
from rose_producer import Client, FailedEvent, Request
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import SLOW, StartWorker, echoed, has_no_jobs, running
from tests.support.mortal import POISON


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"job": b"\xc1garbage"}, "malformed_message"),
        ({"something": b"else"}, "malformed_message"),
        ({"job": b"\x91" * 5000}, "malformed_message"),
        ({"job": b"\0" * (2**20 + 1)}, "job_too_large"),
        ({"job": msgpack.packb({"v": 1, "id": "0-bad", "prompt": 5})}, "invalid_parameter"),
        ({"job": msgpack.packb({"v": 2, "id": "0-bad", "prompt": "x"})}, "invalid_parameter"),
        (
            {"job": msgpack.packb({"id": "0-bad", "prompt": "x", "sampling": {"heat": 1}})},
            "invalid_parameter",
        ),
        ({"job": msgpack.packb({"id": "7-elsewhere", "prompt": "x"})}, "invalid_parameter"),
    ],
)
def test_a_job_that_cannot_run_is_a_dead_letter_and_the_worker_goes_on(
    client: Client,
    start_worker: StartWorker,
    raw: redis.Redis,
    partition: Partition,
    fields: dict[str, bytes],
    code: str,
) -> None:
    # given
    start_worker()
    # when
    raw.xadd(partition.jobs(Priority.NORMAL), dict(fields))
    after = client.submit("fine", max_new_tokens=2)
    # then
    assert after.result(90).token_ids == echoed(b"fine", 2)
    wait_until(lambda: raw.xlen(partition.dead))
    ((_, letter),) = raw.xrange(partition.dead)
    assert letter[b"code"].decode() == code
    assert letter[b"message"]
    assert letter[b"job"] == fields.get("job", b"")[: 2**20]
    if b"0-bad" in fields.get("job", b""):
        (event,) = client.job("0-bad").stream(timeout_s=90)
        assert isinstance(event, FailedEvent)
        assert event.code == code
    assert has_no_jobs(raw, partition)


def test_a_token_log_that_cannot_be_read_costs_one_job(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given
    job = client.submit("x")
    raw.xadd(partition.tokens(job.id), {"event": b"garbage"}, id="1-0")
    raw.hset(partition.state(job.id), "tokens", 1)
    # when
    start_worker()
    # then
    assert client.submit("ab", max_new_tokens=2).result(90).token_ids == echoed(b"ab", 2)
    wait_until(lambda: job.status().status == "failed")
    assert raw.xlen(partition.dead) == 1


def test_what_only_the_worker_can_know_reaches_the_caller_as_its_own_error(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given: too long for the model, but submit cannot be certain for chat
    worker = start_worker(max_context=50)
    job = client.submit([{"role": "user", "content": "x" * 60}])
    # when / then
    with pytest.raises(PromptTooLong, match="60 tokens"):
        job.result(90)
    with pytest.raises(PromptTooLong, match="context length is 50"):
        client.submit("x" * 60)
    # and the caller's mistake is nobody else's: it is no dead letter
    assert has_no_jobs(raw, partition)
    assert raw.xlen(partition.dead) == 0
    assert client.queue_status().queued_tokens == 0
    assert worker.metrics()["rose_invalid_messages_total"] == 0


def test_a_text_that_another_worker_has_begun_is_a_dead_letter_where_it_cannot_go_on(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given: a worker that serves what another of the same queue does not
    large = start_worker(grace_s=0, **SLOW)
    job = client.submit("x" * 60, max_new_tokens=1000)
    wait_until(lambda: running(job, tokens=3))
    # when
    large.terminate()
    start_worker(max_context=50)
    # then
    wait_until(lambda: job.status().status == "failed")
    ((_, letter),) = raw.xrange(partition.dead)
    assert letter[b"code"] == b"prompt_too_long"


def test_one_poisonous_job_does_not_take_its_batch_mates_with_it(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given: all in one batch from the start, with nobody to say which of them kills
    poison = client.submit([POISON])
    mates = client.submit_many([[n, n + 1] for n in range(12)])
    settings = {"program": ["tests.support.mortal"], "lease_s": 0.5, "ready": False}
    worker = start_worker(**settings)
    deaths = 0
    # when: whoever dies is started again, as a supervisor would
    while poison.status().status != "failed":
        if not worker.running:
            deaths += 1
            worker.start()
        time.sleep(0.05)
    # then
    with pytest.raises(JobFailed, match="3 takes in a row") as caught:
        poison.result(90)
    assert caught.value.code == "crash_loop"
    assert 1 <= deaths <= 3  # a take that a stall of the machine has ended counts, too
    for n, mate in enumerate(mates):
        assert mate.result(90).token_ids == tuple((n, n + 1)[i % 2] for i in range(256))
    assert [letter[b"code"] for _, letter in raw.xrange(partition.dead)] == [b"crash_loop"]
    assert has_no_jobs(raw, partition)


# What somebody else has written to the keys of a job


def spoil_log_ahead(raw: redis.Redis, partition: Partition, job_id: str) -> None:
    raw.xadd(partition.tokens(job_id), {"event": b"garbage"}, id="999999-0")


def spoil_log_type(raw: redis.Redis, partition: Partition, job_id: str) -> None:
    raw.delete(partition.tokens(job_id))
    raw.set(partition.tokens(job_id), "something else")


def spoil_state(raw: redis.Redis, partition: Partition, job_id: str) -> None:
    raw.delete(partition.state(job_id))
    raw.set(partition.state(job_id), "something else")


@needs_redis_server  # the stand-in does not survive errors inside a script
@pytest.mark.parametrize("spoil", [spoil_log_ahead, spoil_log_type, spoil_state])
@pytest.mark.parametrize("when", ["while it waits", "while it runs"])
def test_spoilt_keys_cost_the_job_they_belong_to_and_no_other(
    client: Client,
    start_worker: StartWorker,
    raw: redis.Redis,
    partition: Partition,
    spoil: Callable[[redis.Redis, Partition, str], None],
    when: str,
) -> None:
    # given
    if when == "while it runs":
        start_worker(lease_s=0.5, **SLOW)
    spoilt = client.submit("abc", max_new_tokens=100_000)
    mates = client.submit_many([Request("de", sampling={"max_new_tokens": 40})] * 3)
    if when == "while it runs":
        wait_until(lambda: running(spoilt, tokens=3))
    # when
    spoil(raw, partition, spoilt.id)
    if when == "while it waits":
        start_worker(lease_s=0.5)
    # then
    for mate in mates:
        assert mate.result(90).token_ids == echoed(b"de", 40)
    wait_until(lambda: has_no_jobs(raw, partition))
    ((_, letter),) = raw.xrange(partition.dead)
    assert letter[b"code"] == b"malformed_message"


def test_the_dead_letter_of_a_job_whose_state_was_deleted_says_so(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given: a worker that does not live to see it
    worker = start_worker(lease_s=0.5, **SLOW)
    job = client.submit("abc", max_new_tokens=100_000)
    wait_until(lambda: running(job, tokens=3))
    worker.kill()
    # when
    raw.delete(partition.state(job.id))
    start_worker(lease_s=0.5)
    # then
    wait_until(lambda: raw.xlen(partition.dead) == 1)
    ((_, letter),) = raw.xrange(partition.dead)
    assert b"the job's state is gone" in letter[b"message"]
    assert b"noeviction" in letter[b"message"]
