"""The record and the owner of a job: stored with it, read by nobody else, gone with it."""

from dataclasses import replace

import pytest

from rose.errors import InvalidParameter, JobNotFound, JobTooLarge, MalformedMessage, QueueFull
from rose.protocol.status import MAX_RECORD_BYTES
from rose_producer import Client, FailedEvent, Request
from rose_producer.dead_letters import DeadLetters
from tests.support.bench import Bench, dead_letter, token

#: Not text, and not what any script would read as something else.
RECORD = bytes(range(256)) * 4


def load_bytes(bench: Bench) -> int:
    return int(bench.redis.hget(bench.partition.load, "bytes") or 0)


def test_a_record_is_read_as_it_was_given_while_its_job_goes_on(bench: Bench) -> None:
    # given
    job = bench.client.submit("x", record=RECORD, owner="key_1.a-b")
    # when
    waiting = job.record()
    lease = bench.start("w")
    bench.append(lease, token(0))
    running = job.record()
    bench.finish(lease, 1)
    ended = job.record()
    # then
    for seen in (waiting, running, ended):
        assert (seen.job_id, seen.owner, seen.record) == (job.id, "key_1.a-b", RECORD)
        assert seen.enqueued_ms == job.status().enqueued_ms
    assert (waiting.status, waiting.tokens, waiting.started_ms) == ("queued", 0, None)
    assert (running.status, running.tokens, running.ended_ms) == ("running", 1, None)
    assert (ended.status, ended.started_ms) == ("finished", running.started_ms)
    assert ended.ended_ms == job.status().ended_ms is not None


def test_a_job_without_a_record_has_an_empty_one(bench: Bench) -> None:
    # when
    job = bench.client.submit("x")
    # then
    record = job.record()
    assert (record.owner, record.record, record.cancel_requested) == ("", b"", False)
    # and no field of it takes memory
    assert not {b"owner", b"record"} & bench.redis.hgetall(bench.partition.state(job.id)).keys()


def test_jobs_of_one_call_have_records_of_their_own(bench: Bench) -> None:
    # when
    requests = [Request(f"{n}", record=b"%d" % n, owner=f"o{n}") for n in range(3)]
    jobs = bench.client.submit_many([*requests, Request("none"), Request("last", record=b"r")])
    # then
    read = [(job.record().owner, job.record().record) for job in jobs]
    assert read == [("o0", b"0"), ("o1", b"1"), ("o2", b"2"), ("", b""), ("", b"r")]


def test_a_repeat_leaves_the_first_record_and_returns_the_first_id(bench: Bench) -> None:
    # given
    first = bench.client.submit("x", idempotency_key="k", record=b"first", owner="a")
    # when
    again = bench.client.submit("y", idempotency_key="k", record=b"second", owner="b")
    same_id = bench.client.submit("y", job_id=first.id, record=b"third", owner="c")
    # then
    assert first.id == again.id == same_id.id
    assert (again.record().owner, again.record().record) == ("a", b"first")


def test_a_submit_brings_the_record_of_the_job_that_it_leads_to(bench: Bench) -> None:
    # given
    asked = Request("x", idempotency_key="k", record=b"first", owner="o")
    # when
    job, record = bench.client.submit_recorded(asked)
    bench.append(bench.start("w"), token(0))
    again, later = bench.client.submit_recorded(replace(asked, record=b"second"))
    # then
    assert (record.job_id, record.owner, record.record) == (job.id, "o", b"first")
    assert (record.status, record.tokens) == ("queued", 0)
    assert again.id == job.id
    assert later == job.record()
    assert (later.status, later.tokens, later.record) == ("running", 1, b"first")


def test_a_record_counts_in_the_bytes_of_the_queue_until_its_job_ends(bench: Bench) -> None:
    # given
    bench.client.submit("x")
    plain = load_bytes(bench)
    bench.client.submit("x", record=RECORD)
    assert load_bytes(bench) == 2 * plain + len(RECORD)
    # when
    for _ in range(2):
        bench.finish(bench.start("w"), 0)
    # then
    assert load_bytes(bench) == 0


def test_a_record_may_fill_the_queue(bench: Bench) -> None:
    # given
    bench.redis.hset(bench.partition.model, mapping={"name": "m", "max_bytes": 5000})
    # then
    with pytest.raises(QueueFull, match="bytes"):
        bench.client.submit("x", record=b"r" * 5000)
    bench.client.submit("x", record=b"r" * 500)


def test_a_record_expires_with_its_job(bench: Bench) -> None:
    # given
    job = bench.client.submit("x", record=RECORD)
    bench.finish(bench.start("w"), 0)
    assert 0 < bench.redis.ttl(bench.partition.state(job.id)) <= 60
    # when
    bench.redis.delete(bench.partition.state(job.id))
    # then
    with pytest.raises(JobNotFound, match=job.id):
        job.record()


def test_the_largest_record_travels_beside_the_largest_job(bench: Bench) -> None:
    # given
    record = b"r" * MAX_RECORD_BYTES
    # when
    jobs = bench.client.submit_many([Request("x" * 1_000_000, record=record)] * 5)
    # then
    assert all(job.record().record == record for job in jobs)


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"record": b"r" * (MAX_RECORD_BYTES + 1)}, JobTooLarge, "the record is 1048577 bytes"),
        ({"record": "text"}, InvalidParameter, r"record: must be bytes \(got str\)"),
        ({"owner": "a b"}, InvalidParameter, "owner: 'a b' must be"),
        ({"owner": "-"}, InvalidParameter, "owner"),
        ({"owner": "a\n"}, InvalidParameter, "owner"),
        ({"owner": "x" * 81}, InvalidParameter, "1 to 80 characters"),
    ],
)
def test_what_is_no_record_is_refused_and_nothing_is_sent(
    given: dict[str, object], error: type[Exception], match: str, client: Client
) -> None:
    with pytest.raises(error, match=match):
        client.submit("x", **given)
    assert client.queue_status().waiting["normal"] == 0


def test_who_asks_to_cancel_can_be_seen(bench: Bench) -> None:
    # given
    job, _ = bench.begin()
    # when
    job.cancel()
    # then
    assert job.record().cancel_requested
    assert job.record().status == "running"


def test_a_state_that_somebody_else_wrote_is_told(bench: Bench) -> None:
    # given
    job = bench.client.submit("x", owner="a")
    bench.redis.hset(bench.partition.state(job.id), "tokens", "many")
    # then
    with pytest.raises(MalformedMessage, match=job.id):
        job.record()


def test_a_retried_job_keeps_its_record_while_the_first_result_lives(bench: Bench) -> None:
    # given: a dead letter, which holds the job alone
    job = bench.client.submit("x", record=RECORD, owner="a")
    lease = bench.start("w")
    raw = bench.redis.xrange(lease.entry.stream)[0][1][b"job"]
    call = dead_letter(bench, lease.entry, job.id, FailedEvent(index=0, code="c", message="m"))
    bench.call(call)
    with DeadLetters(bench.client.settings) as letters:
        (letter,) = letters.list()
        bench.redis.xdel(bench.partition.dead, letter.handle.partition(":")[2])
        entry = bench.redis.xadd(
            bench.partition.dead,
            {"id": job.id, "code": "c", "message": "m", "stream": lease.entry.stream, "job": raw},
        )
        before = load_bytes(bench)
        # when
        again = bench.client.job(letters.retry(f"0:{entry.decode()}").new_id)
        # then
        assert (again.record().owner, again.record().record) == ("a", RECORD)
        # and all of it is given back at the end
        assert load_bytes(bench) > before + len(RECORD)
        bench.finish(bench.start("w"), 0)
        assert load_bytes(bench) == before
