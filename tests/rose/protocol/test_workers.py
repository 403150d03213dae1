"""What Redis knows of workers: their slots, what they wrote, and who wrote which part."""

from dataclasses import replace

import pytest

from rose.protocol import GROUP, Partition, Priority, calls
from rose.protocol.announced_model import MODEL_FIELDS
from rose.protocol.status import WorkerStatus, Writer, read_queue_status
from tests.support.bench import Bench, token


def announce(bench: Bench, worker: str, slots: int, partition: Partition | None = None) -> None:
    facts = {"name": "m", "fingerprint": "f"}
    bench.call(
        calls.announce(partition or bench.partition, worker, facts, mode="keep", slots=slots)
    )


def test_the_status_says_what_each_worker_has_and_holds(bench: Bench) -> None:
    # given
    bench.client.submit_many(["a", "b"])
    bench.start("busy")
    for worker, slots in (("busy", 4), ("idle", 8)):
        announce(bench, worker, slots)
    # when
    status = bench.client.queue_status()
    # then
    assert status.workers == {"busy": 1, "idle": 0}
    assert {name: (one.jobs, one.slots) for name, one in status.by_worker.items()} == {
        "busy": (1, 4),
        "idle": (0, 8),
    }
    assert all(one.silent_ms < 15_000 for one in status.by_worker.values())


def test_a_worker_that_has_said_nothing_has_no_slots(bench: Bench) -> None:
    bench.client.submit("a")
    bench.start("old")

    (worker,) = bench.client.queue_status().by_worker.values()

    assert (worker.jobs, worker.slots) == (1, None)


def test_a_worker_of_several_partitions_has_its_slots_once() -> None:
    high, none, heard_of = [2, b"5-0", [[b"w", 2, 700, b"4"]]], [0, b"", []], [[b"w", 0, 30, b"4"]]
    facts = [b"m", *[None] * (len(MODEL_FIELDS) - 1), b"2", b""]
    streams = [high, none, [0, b"", heard_of], none]
    reply = [streams, 0, b"0", facts, 7, b"10", [b"0", b"0", b"0"]]

    status = read_queue_status("q", [reply, reply])

    assert status.by_worker == {"w": WorkerStatus(4, 4, 30)}
    assert (status.generated_tokens, status.partitions) == (20, 2)


@pytest.mark.parametrize("end", ["leaves", "is forgotten"])
def test_nothing_stays_of_a_worker_that_has_gone(bench: Bench, end: str) -> None:
    # given
    announce(bench, "here", 2)
    bench.fetch("gone")
    announce(bench, "gone", 4)
    # when
    if end == "leaves":
        bench.call(calls.leave(bench.partition, "gone"))
        left = {b"here": b"2"}
    else:
        bench.call(calls.forget(bench.partition, idle_ms=0))
        left = {}
    # then
    assert bench.redis.hgetall(bench.partition.workers) == left


def test_every_logged_token_is_counted_once(bench: Bench) -> None:
    # given
    _, lease = bench.begin("w")
    # when: the second call repeats a token
    bench.append(lease, token(0), token(1))
    bench.append(lease, token(1), token(2))
    bench.finish(lease, 3)
    _, other = bench.begin("w")
    bench.append(other, token(0))
    # then
    assert bench.client.queue_status().generated_tokens == 4


def test_a_job_remembers_who_wrote_it_from_which_token_on(bench: Bench) -> None:
    # given
    job, lease = bench.begin("first")
    bench.append(lease, token(0), token(1))
    # when
    bench.steal(lease, "second")
    # then
    assert job.status().writers == (Writer(0, "first"), Writer(2, "second"))


def test_of_very_many_workers_the_last_are_remembered(bench: Bench) -> None:
    # given
    job, lease = bench.begin("worker-000")
    # when
    for number in range(1, 200):
        bench.append(lease, token(number - 1))
        taken = bench.steal(lease, f"worker-{number:03}")
        lease.take_id = taken.take_id
    # then
    writers = job.status().writers
    assert writers[-1] == Writer(199, "worker-199")
    assert writers == tuple(Writer(n, f"worker-{n:03}") for n in range(200 - len(writers), 200))
    assert 100 < len(writers) < 200


def test_consumers_that_left_without_a_word_are_forgotten_once_they_hold_nothing(
    bench: Bench,
) -> None:
    # given
    bench.client.submit("x")
    bench.start("holder")
    for stream in bench.partition.all_jobs:
        bench.redis.xgroup_createconsumer(stream, GROUP, "killed")
    # when
    forgotten = bench.call(calls.forget(bench.partition, idle_ms=0))
    # then
    left = {
        info["name"]
        for stream in bench.partition.all_jobs
        for info in bench.redis.xinfo_consumers(stream, GROUP)
    }
    assert forgotten == 3
    assert left == {b"holder"}


def test_the_status_names_workers_that_live_and_those_that_hold_jobs(bench: Bench) -> None:
    # given
    bench.client.submit("x")
    bench.start("holder")
    bench.redis.xgroup_createconsumer(bench.partition.jobs(Priority.LOW), GROUP, "idle")
    # when: by the second call nobody has been heard of lately
    status = bench.client.queue_status()
    call = calls.queue_status(bench.partition)
    later = replace(call, args=[GROUP, 0, *call.args[2:]])
    # then
    assert status.workers == {"holder": 1, "idle": 0}
    assert read_queue_status("q", [bench.call(later)]).workers == {"holder": 1}
