"""Which model a queue serves, and which one may go on with a text: what the scripts say."""

from rose.protocol import GROUP, JobEntry, Priority, calls
from rose.protocol.calls import Announced, OfOtherModel, Standing, Take, Taken
from tests.support.bench import Bench, token


def announce(bench: Bench, worker: str, model: str, mode: str = "join", **facts: str) -> Announced:
    given = {"name": model, "fingerprint": f"print of {model}", **facts}
    call = calls.announce(bench.partition, worker, given, mode=mode, slots=1)  # type: ignore[arg-type]
    return calls.announced(bench.call(call))


def take(bench: Bench, worker: str, job: JobEntry, model: str) -> object:
    take = Take(*job)
    call = calls.take(bench.partition, [take], worker, ttl_s=60, model=model, mode="alone")
    (reply,) = bench.call(call)
    return calls.taken(reply, take.take_id)


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


def test_a_worker_with_another_number_of_partitions_is_refused_while_others_live(
    bench: Bench,
) -> None:
    # given
    assert announce(bench, "w1", "a", partitions="2").standing is Standing.SERVES
    # then
    for mode, model in (("join", "a"), ("replace", "a"), ("replace", "b")):
        refused = announce(bench, "w2", model, mode, partitions="3")
        assert refused == Announced(Standing.DIVIDED, "a", "print of a", partitions="2")
    assert announce(bench, "w3", "a", partitions="2").standing is Standing.SERVES
    assert bench.redis.hget(bench.partition.model, "partitions") == b"2"
    # and: once they have left
    for worker in ("w1", "w3"):
        bench.call(calls.leave(bench.partition, worker))
    assert announce(bench, "w2", "a", partitions="3").standing is Standing.SERVES
    assert bench.redis.hget(bench.partition.model, "partitions") == b"3"


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
    lease = calls.Lease(bench.partition, *job, first.take_id)
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
    assert isinstance(taken, Taken)
    assert taken == Taken(2, 2, False, 0)
    bench.append(calls.Lease(bench.partition, *job, taken.take_id), token(0))
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
