"""Data that Redis has lost: what can be written again is, and who waits for the rest is told."""

import time
from collections.abc import Callable

import redis

from rose.errors import JobNotFound
from rose.protocol import GROUP, Partition
from rose_producer import Client, Job, Request
from tests.conftest import needs_redis_server
from tests.support.bench import at_once, wait_until
from tests.support.echo import has_no_jobs
from tests.support.listeners import assert_echo
from tests.support.mid_sentence import Stream

pytestmark = needs_redis_server


def test_after_a_flush_new_jobs_run_and_old_subscribers_are_told(
    admin: redis.Redis, client: Client, endless: Callable[..., Stream]
) -> None:
    # given
    running = endless()
    # when
    admin.flushall()
    # then
    running.listeners.join()
    assert [type(error) for error in running.listeners.errors] == [JobNotFound, JobNotFound]
    assert client.submit("ab", max_new_tokens=2).result(90).token_ids == (97, 98)


def test_subscribers_are_told_that_somebody_has_deleted_the_state_of_their_job(
    admin: redis.Redis, client: Client, partition: Partition, endless: Callable[..., Stream]
) -> None:
    # given
    running = endless()
    state = partition.state(running.job.id)
    # when
    admin.delete(state)
    # then: by when they look, there is no job, or one that has failed since
    running.listeners.join()
    assert all(isinstance(error, JobNotFound) for error in running.listeners.errors)
    ended = [seen[-1] for seen in running.listeners.seen if seen[-1].is_terminal]
    assert len(ended) + len(running.listeners.errors) == 2
    assert client.submit("ab", max_new_tokens=2).result(90).token_ids == (97, 98)
    # and who comes back later with what he has, or with more, hears the same
    wait_until(lambda: admin.hget(state, "status") == b"failed")
    later = [running.job.stream(cursor, timeout_s=90) for cursor in (10, 100_000)]
    ended += [list(events)[-1] for events in later]
    assert [getattr(event, "code", None) for event in ended] == ["malformed_message"] * len(ended)


def test_tokens_that_a_failover_has_forgotten_are_written_again(
    admin: redis.Redis, partition: Partition, stream: Callable[..., Stream]
) -> None:
    # given: what the heir of a primary knows of a job, and tokens that came after it
    running = stream()
    keys = [partition.state(running.job.id), partition.tokens(running.job.id)]
    known = at_once(admin, keys)
    delivered = max(map(len, running.listeners.seen))
    wait_until(lambda: running.listeners.have(delivered + 10))
    # when
    with admin.pipeline(transaction=True) as heir:
        for key, value in zip(keys, known, strict=True):
            heir.restore(key, 0, value, replace=True)
        heir.execute()
    # then
    running.assert_complete()


def test_jobs_complete_after_their_group_was_destroyed(
    admin: redis.Redis, client: Client, partition: Partition, stream: Callable[..., Stream]
) -> None:
    # given: a job that runs, and some that wait for a slot
    running = stream()
    jobs = [Request("wait", sampling={"max_new_tokens": 50}) for _ in range(40)]
    waiting = client.submit_many(jobs)
    # when
    for key in partition.all_jobs:
        admin.xgroup_destroy(key, GROUP)
    # then
    running.assert_complete()
    for job in waiting:
        assert_echo(list(job.stream(timeout_s=90)), "wait", 50)
    wait_until(lambda: has_no_jobs(admin, partition))


def test_scripts_that_are_flushed_again_and_again(
    admin: redis.Redis, client: Client, stream: Callable[..., Stream]
) -> None:
    # given
    running = stream()
    # when
    jobs: list[Job] = []
    two = Request("ab", sampling={"max_new_tokens": 2})
    for _ in range(10):
        admin.script_flush()
        jobs.append(client.submit("ab", max_new_tokens=2))
        admin.script_flush()
        jobs += client.submit_many([two, two])
        admin.script_flush()
        time.sleep(0.05)
    # then
    running.assert_complete()
    assert {job.result(90).token_ids for job in jobs} == {(97, 98)}
