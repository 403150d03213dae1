"""An append: tokens and the end of a job, each logged once, by the job's owner alone."""

from dataclasses import replace

from rose.protocol import GROUP, decode_event
from rose_producer import FinishedEvent
from tests.support.bench import Bench, to_append, token


def test_the_log_grows_by_one_entry_per_event_and_a_retry_doubles_nothing(bench: Bench) -> None:
    # given
    job, lease = bench.begin()
    # when: the reply to the first call is lost, so the worker repeats it
    first = bench.append(lease, token(0), token(1))
    repeated = bench.append(lease, token(0), token(1), token(2))
    # then
    assert first == ["OK", "OK"]
    assert repeated == ["DUP", "DUP", "OK"]
    entries = bench.redis.xrange(bench.partition.tokens(job.id))
    assert [entry_id for entry_id, _ in entries] == [b"1-0", b"2-0", b"3-0"]
    assert [decode_event(f[b"event"]) for _, f in entries] == [token(0), token(1), token(2)]


def test_tokens_and_ends_that_leave_a_gap_are_refused(bench: Bench) -> None:
    _, lease = bench.begin()
    assert bench.append(lease, token(0), token(2)) == ["OK", "GAP"]
    assert bench.finish(lease, 2) == "GAP"
    assert bench.lengths() == [0, 1, 0]


def test_a_run_of_tokens_is_logged_as_far_as_it_is_new(bench: Bench) -> None:
    # given
    job, lease = bench.begin()
    bench.append(lease, token(0), token(1))
    # when: a run that begins where an earlier call did, and ends with the job
    run = to_append(lease, *map(token, range(4)))
    run.end = FinishedEvent(index=4, reason="eos", prompt_tokens=1)
    with bench.listening(bench.partition.channel(job.id)) as channel:
        outcomes = bench.publish([run]) + bench.publish([run])
        # then: what was new is published, once
        assert outcomes == ["OK", "DUP"]
        published = [channel.get_message(timeout=90) for _ in range(3)]
        assert [decode_event(m["data"]) for m in published if m] == [token(2), token(3), run.end]
        assert channel.get_message(timeout=0.05) is None
    assert job.result(1).token_ids == (100, 101, 102, 103)
    assert bench.lengths() == [0, 0, 0]


def test_a_worker_that_lost_its_job_is_fenced(bench: Bench) -> None:
    # given
    job = bench.client.submit("x")
    zombie = bench.start("w1")
    bench.append(zombie, token(0), token(1))
    # when
    taken = bench.steal(zombie, "w2")
    # then: the new owner has another take id, the old one gets nothing through
    assert taken.epoch == 2
    assert taken.logged == 2
    assert bench.append(zombie, token(2)) == ["FENCED"]
    assert bench.finish(zombie, 2) == "FENCED"
    owner = replace(zombie, take_id=taken.take_id)
    assert bench.append(owner, token(2)) == ["OK"]
    assert bench.finish(owner, 3) == "OK"
    assert job.result(1).token_ids == (100, 101, 102)


def test_finish_is_last_once_and_acknowledged_after_the_result_is_stored(bench: Bench) -> None:
    # given
    job = bench.client.submit([1, 2, 3], max_new_tokens=7)
    lease = bench.start("w")
    bench.append(lease, token(0))
    assert bench.client.queue_status().queued_tokens == 10
    # when
    outcomes = [bench.finish(lease, 1), bench.finish(lease, 1)]
    # then
    assert outcomes == ["OK", "DUP"]
    assert bench.client.queue_status().queued_tokens == 0
    assert bench.append(lease, token(1)) == ["GAP"]
    entries = bench.redis.xrange(bench.partition.tokens(job.id))
    assert [entry_id for entry_id, _ in entries] == [b"1-0", b"1-1"]
    assert bench.lengths() == [0, 0, 0]
    assert bench.redis.xpending(lease.entry.stream, GROUP)["pending"] == 0
    for key in (bench.partition.state(job.id), bench.partition.tokens(job.id)):
        assert 0 < bench.redis.ttl(key) <= 60
