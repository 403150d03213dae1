"""A fetch: the order in which jobs leave their streams."""

from rose.protocol import JobSpec, Priority, encode_job
from tests.support.bench import Bench


def test_fetch_serves_the_most_urgent_and_never_more_than_asked(bench: Bench) -> None:
    # given
    low = [bench.client.submit("x", priority="low").id for _ in range(2)]
    normal = [bench.client.submit("x").id for _ in range(2)]
    high = [bench.client.submit("x", priority="high").id]
    # when
    first = [job.job_id for job in bench.fetch("w", 2)]
    rest = [job.job_id for job in bench.fetch("w", 10)]
    # then
    assert first == [*high, normal[0]]
    assert rest == [normal[1], *low]
    assert bench.fetch("w", 5) == []


def test_ageing_lets_no_job_be_overtaken_by_one_that_came_too_much_later(bench: Bench) -> None:
    # given: entry ids are enqueue times; a level of priority is worth ten seconds
    def add(priority: Priority, at_ms: int) -> None:
        raw = encode_job(JobSpec(id=f"{priority}-{at_ms}", prompt="x"))
        bench.redis.xadd(bench.partition.jobs(priority), {"job": raw}, id=f"{at_ms}-0")

    for at_ms in (1_000, 2_000):
        add(Priority.LOW, at_ms)
    add(Priority.NORMAL, 11_500)
    for at_ms in (20_500, 21_500, 22_500, 23_500):
        add(Priority.HIGH, at_ms)
    # when
    one_by_one = [bench.fetch("w", 1, ageing_s=10)[0].job_id for _ in range(3)]
    together = [job.job_id for job in bench.fetch("w", 10, ageing_s=10)]
    # then: low from 1,000 counts as of 21,000, normal from 11,500 as of 21,500
    assert one_by_one == ["high-20500", "low-1000", "high-21500"]
    assert together == ["normal-11500", "low-2000", "high-22500", "high-23500"]
