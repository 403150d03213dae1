"""All workers of a queue serve one model, and no model goes on with the text of another."""

from __future__ import annotations

import pytest

from rose.errors import JobFailed
from rose.protocol import GROUP, JobEntry, Priority, calls
from rose.protocol.calls import Announced, OfOtherModel, Standing, Take, Taken
from rose_cli.demo.broker import EmbeddedBroker
from rose_producer import Client, ProducerSettings, Request
from rose_producer.dead_letters import DeadLetters
from tests.support.bench import Bench, token, wait_until
from tests.support.echo import SLOW, StartWorker, echoed, running

# What the scripts say


def announce(bench: Bench, worker: str, model: str, mode: str = "join", **facts: str) -> Announced:
    given = {"name": model, "fingerprint": f"print of {model}", **facts}
    call = calls.announce(bench.partition, worker, given, mode=mode, slots=1)  # type: ignore[arg-type]
    return calls.announced(bench.call(call))


def take(bench: Bench, worker: str, job: JobEntry, model: str) -> object:
    call = calls.take(bench.partition, [Take(*job)], worker, ttl_s=60, model=model, mode="alone")
    (reply,) = bench.call(call)
    return calls.taken(reply)


def move(bench: Bench, job: JobEntry, worker: str) -> None:
    bench.redis.xclaim(job.entry.stream, GROUP, worker, 0, [job.entry.id])


def test_a_worker_with_another_model_is_refused_while_others_live(bench: Bench) -> None:
    # given
    assert announce(bench, "w1", "a").standing is Standing.SERVES
    # then
    refused = announce(bench, "w2", "b")
    assert refused == Announced(Standing.REFUSED, "a", "print of a")
    assert announce(bench, "w3", "a").standing is Standing.SERVES
    assert bench.redis.hget(bench.partition.model, "name") == b"a"
    # and: once they have left
    for worker in ("w1", "w3"):
        bench.call(calls.leave(bench.partition, worker))
    assert announce(bench, "w2", "b").standing is Standing.SERVES
    assert bench.redis.hget(bench.partition.model, "fingerprint") == b"print of b"


def test_two_models_that_come_at_once_do_not_both_join(bench: Bench) -> None:
    """The first has announced itself, and has not been heard of otherwise."""
    standings = [announce(bench, worker, worker).standing for worker in ("a", "b")]
    assert standings == [Standing.SERVES, Standing.REFUSED]


def test_the_same_name_is_another_model_where_the_fingerprint_differs(bench: Bench) -> None:
    announce(bench, "w1", "a")
    assert announce(bench, "w2", "a", fingerprint="other").standing is Standing.REFUSED
    assert announce(bench, "w2", "/a", fingerprint="print of a").standing is Standing.SERVES


def test_workers_of_an_older_version_count_by_name(bench: Bench) -> None:
    # given: it writes its name when it starts, and reads to say that it lives
    bench.redis.hset(bench.partition.model, mapping={"name": "a", "context_tokens": 9})
    bench.redis.xreadgroup(GROUP, "old", {bench.partition.jobs(Priority.NORMAL): "9-0"})
    # then
    assert announce(bench, "w", "b").standing is Standing.REFUSED
    assert announce(bench, "w", "a").standing is Standing.SERVES
    # and: an older one that comes later takes no fingerprint away
    bench.redis.hset(bench.partition.model, mapping={"name": "a", "context_tokens": 9})
    assert announce(bench, "w2", "a", fingerprint="other").standing is Standing.REFUSED


def test_a_replaced_model_is_told_so_and_may_come_back(bench: Bench) -> None:
    # given
    announce(bench, "w1", "a")
    # when
    assert announce(bench, "w2", "b", "replace").standing is Standing.SERVES
    # then
    assert announce(bench, "w1", "a", "keep") == Announced(Standing.REPLACED, "b", "print of b")
    announce(bench, "w3", "a", "replace")
    assert announce(bench, "w1", "a", "keep").standing is Standing.SERVES
    assert announce(bench, "w2", "b", "keep").standing is Standing.REPLACED


def test_what_the_queue_serves_is_announced_again_after_its_data_has_gone(bench: Bench) -> None:
    announce(bench, "w1", "a")
    bench.redis.delete(bench.partition.model)
    assert announce(bench, "w1", "a", "keep").standing is Standing.SERVES
    assert bench.redis.hget(bench.partition.model, "name") == b"a"


def test_a_text_is_not_continued_by_another_model(bench: Bench) -> None:
    # given
    bench.client.submit("x")
    (job,) = bench.fetch("w1")
    first = take(bench, "w1", job, "a")
    assert isinstance(first, Taken)
    lease = calls.Lease(bench.partition, *job, first.epoch)
    bench.append(lease, token(0), token(1))
    # when
    move(bench, job, "w2")
    refused = [take(bench, "w2", job, "b") for _ in range(2)]
    # then: nothing has changed, and the same model may go on
    assert refused == [OfOtherModel(2)] * 2
    assert bench.append(lease, token(2)) == ["OK"]
    assert take(bench, "w2", job, "a") == Taken(2, 1, False, 3)


def test_a_job_without_a_token_begins_with_any_model(bench: Bench) -> None:
    # given
    bench.client.submit("x")
    (job,) = bench.fetch("w1")
    take(bench, "w1", job, "a")
    # when
    move(bench, job, "w2")
    taken = take(bench, "w2", job, "b")
    # then: and it is the second one's from then on
    assert taken == Taken(2, 2, False, 0)
    bench.append(calls.Lease(bench.partition, *job, 2), token(0))
    move(bench, job, "w1")
    assert take(bench, "w1", job, "a") == OfOtherModel(1)


def test_a_text_that_an_older_version_has_begun_goes_on(bench: Bench) -> None:
    # given: it notes no model
    bench.client.submit("x")
    lease = bench.start("old")
    bench.append(lease, token(0))
    bench.redis.hdel(bench.partition.state(lease.job_id), "model")
    # when / then
    job = JobEntry(lease.entry, lease.job_id)
    move(bench, job, "w")
    assert take(bench, "w", job, "b") == Taken(2, 1, False, 1)


# Workers


def test_a_worker_with_another_model_waits_until_the_others_have_left(
    client: Client, start_worker: StartWorker
) -> None:
    # given
    first = start_worker(model="a")
    second = start_worker(model="b", ready=False)
    wait_until(lambda: "null:a" in second.log)
    # then
    assert client.queue_status().model == "null:a"
    assert list(client.queue_status().workers) == [first.name]
    # when
    assert first.terminate() == 0
    # then
    second.wait_ready()
    assert client.submit("ab", max_new_tokens=2).result(90).token_ids == echoed(b"ab", 2)
    assert client.queue_status().model == "null:b"


def test_a_worker_that_waits_for_others_to_leave_stops_when_asked(
    start_worker: StartWorker,
) -> None:
    # given
    start_worker(model="a")
    second = start_worker(model="b", ready=False)
    wait_until(lambda: "null:a" in second.log)
    # when / then
    assert second.terminate() == 0


def test_a_new_model_replaces_the_old_one_while_it_serves(
    client: Client,
    start_worker: StartWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given: a job that runs with the old model
    old = start_worker(model="a", lease_s=60, **SLOW)
    begun = client.submit("abc", max_new_tokens=200)
    wait_until(lambda: running(begun, tokens=5))
    # when
    monkeypatch.setenv("ROSE_REPLACE_MODEL", "true")
    new = start_worker(model="b", lease_s=60, **SLOW)
    # then: the old one is told, and ends what it has
    wait_until(lambda: old.http("/readyz") is None)
    jobs = client.submit_many([Request("ab", sampling={"max_new_tokens": 9})] * 40)
    for job in jobs:
        job.result(90)
        assert job.status().worker == new.name
    assert begun.result(90).token_ids == echoed(b"abc", 200)
    assert begun.status().worker == old.name
    assert "takes no new jobs" in old.log


def test_a_half_written_text_of_a_model_that_has_gone_is_a_dead_letter_that_can_be_retried(
    client: Client, start_worker: StartWorker, broker: EmbeddedBroker, queue: str
) -> None:
    # given: it was handed back, and one more that has no token
    old = start_worker(model="a", max_batch_size=1, grace_s=0, **SLOW)
    begun = client.submit("abc", max_new_tokens=400)
    waiting = client.submit("de", max_new_tokens=3)
    wait_until(lambda: running(begun, tokens=5))
    assert old.terminate() == 0
    # when
    start_worker(model="b")
    # then: its subscriber sees the tokens that were written, and then the reason
    tokens, end = [], None
    for event in begun.stream(timeout_s=90):
        if event.type == "tokens":
            tokens += event.token_ids
        else:
            end = event
    assert tokens == list(echoed(b"abc", 400))[: len(tokens)]
    assert len(tokens) >= 5
    assert end is not None
    assert (end.type, end.index) == ("failed", len(tokens))
    with pytest.raises(JobFailed, match="another model") as caught:
        begun.result(90)
    assert caught.value.code == "model_changed"
    assert waiting.result(90).token_ids == echoed(b"de", 3)
    # and
    with DeadLetters(ProducerSettings(redis_url=broker.url, queue=queue)) as letters:
        (letter,) = letters.list()
        again = client.job(letters.retry(letter.handle).new_id)
    assert again.result(90).token_ids == echoed(b"abc", 400)
