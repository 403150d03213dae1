"""A cancel: of a job that waits, and of one that runs."""

from rose.protocol.calls import NotTaken
from tests.support.bench import Bench, token


def test_cancel_ends_a_waiting_job_and_leaves_its_entry_to_the_next_take(bench: Bench) -> None:
    # given
    job = bench.client.submit("x")
    # when
    assert job.cancel() is True
    # then
    assert [event.type for event in job.stream()] == ["cancelled"]
    assert job.cancel() is False
    assert bench.lengths() == [0, 1, 0]
    (entry,) = bench.fetch("w")
    assert bench.take("w", entry) is NotTaken.NOTHING_TO_DO
    assert bench.lengths() == [0, 0, 0]


def test_cancel_of_a_running_job_is_a_flag_that_every_append_reads(bench: Bench) -> None:
    # given
    job, lease = bench.begin()
    # when
    job.cancel()
    # then
    assert bench.append(lease, token(0)) == ["CANCEL"]
    taken = bench.steal(lease, "w2")
    assert taken.cancel_requested
