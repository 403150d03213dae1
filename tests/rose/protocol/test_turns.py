"""Idle workers take turns: one of them listens, and hands on before it works."""

from typing import Any

from rose.protocol import calls
from rose.protocol.calls import LISTENER_MS, WAITING_MS
from tests.support.bench import Bench


def fetch(bench: Bench, worker: str, slots: int = 2, *, wait: bool = False) -> tuple[int, bool]:
    """How many jobs it has got, and whether it is to listen."""
    call = calls.fetch(bench.partition, worker, slots, ageing_ms=1000, wait=wait)
    streams, *_, listens, _mended, _outcomes, _due = bench.call(call)
    return sum(len(flat) // 2 for _, flat in streams), bool(listens)


def hand_on(bench: Bench, worker: str, *, leaves: bool = False) -> bool:
    return bool(bench.call(calls.hand_on(bench.partition, worker, leaves=leaves)))


def turn(bench: Bench) -> Any:
    return bench.redis.zpopmin(bench.partition.turn)


def test_one_idle_worker_listens_and_hands_on_before_it_works(bench: Bench) -> None:
    # given
    assert fetch(bench, "w1") == (0, True)
    assert fetch(bench, "w2") == (0, False)
    listener, _, waiting = bench.partition.idle
    assert LISTENER_MS / 2 < bench.redis.pttl(listener) <= LISTENER_MS
    assert WAITING_MS / 2 < bench.redis.pttl(waiting) <= WAITING_MS
    assert turn(bench) == []
    # when: it hears of a job
    bench.client.submit("x")
    assert fetch(bench, "w1") == (1, False)
    # then: it is another one's turn, and its own no more
    assert turn(bench) == [(b"next", 0.0)]
    assert fetch(bench, "w2") == (0, True)
    assert fetch(bench, "w1") == (0, False)
    assert fetch(bench, "w2") == (0, True)


def test_a_worker_that_is_alone_listens_on_while_it_works(bench: Bench) -> None:
    # given
    assert fetch(bench, "w1") == (0, True)
    bench.client.submit("x")
    # when / then
    assert fetch(bench, "w1") == (1, True)
    assert hand_on(bench, "w1")
    assert turn(bench) == []
    # but not where it has no slot left: whoever comes listens at once
    bench.client.submit_many(["x", "y"])
    assert fetch(bench, "w1") == (2, False)
    assert fetch(bench, "w2") == (0, True)


def test_a_worker_that_waits_reads_nothing_where_another_one_listens(bench: Bench) -> None:
    # given
    assert fetch(bench, "w1") == (0, True)
    bench.client.submit("x")
    # when / then: its waiting is noted, so that the listener hands on
    assert fetch(bench, "w2", wait=True) == (0, False)
    assert not hand_on(bench, "w1")
    assert turn(bench) == [(b"next", 0.0)]
    assert fetch(bench, "w2", wait=True) == (1, False)


def test_nobody_hands_on_for_another(bench: Bench) -> None:
    assert fetch(bench, "w1") == (0, True)
    assert fetch(bench, "w2") == (0, False)
    assert not hand_on(bench, "w2", leaves=True)
    assert turn(bench) == []
    assert fetch(bench, "w1") == (0, True)


def test_a_listener_from_before_the_clock_was_set_back_counts_for_nothing(bench: Bench) -> None:
    # given: a worker that was killed, and an hour until its name expires
    assert fetch(bench, "dead") == (0, True)
    bench.redis.pexpire(bench.partition.idle[0], 3_600_000)
    # then
    assert fetch(bench, "w", wait=True) == (0, True)


def serving(bench: Bench, slots: dict[str, int]) -> None:
    """Workers that live, with so many slots."""
    for worker, count in slots.items():
        facts = {"name": "model", "fingerprint": ""}
        bench.call(calls.announce(bench.partition, worker, facts, mode="keep", slots=count))


def test_a_burst_is_shared_by_those_who_wait_for_their_turn(bench: Bench) -> None:
    # given: three idle workers, of which one listens
    serving(bench, {"w1": 8, "w2": 8, "w3": 8})
    for worker in ("w1", "w2", "w3"):
        fetch(bench, worker, 8)
    # when
    bench.client.submit_many(map(str, range(10)))
    taken = {}
    for worker in ("w1", "w2", "w3"):
        taken[worker] = fetch(bench, worker, 8)[0]
        assert turn(bench) == [(b"next", 0.0)]
    # then
    assert taken == {"w1": 4, "w2": 3, "w3": 3}


def test_who_has_fewer_jobs_gets_more_of_a_burst(bench: Bench) -> None:
    # given: one is full, one has some jobs, the other none
    serving(bench, {"full": 2, "some": 8, "none": 8})
    bench.client.submit_many(map(str, range(4)))
    assert (fetch(bench, "full", 2)[0], fetch(bench, "some", 8)[0]) == (2, 2)
    turn(bench)
    fetch(bench, "none", 8)
    fetch(bench, "some", 6)
    # when
    bench.client.submit_many(map(str, range(6)))
    # then: both have four
    assert fetch(bench, "none", 8)[0] == 4
    turn(bench)
    assert fetch(bench, "some", 6)[0] == 2


def test_a_burst_is_one_workers_where_nobody_comes_when_it_is_his_turn(bench: Bench) -> None:
    # given: the other one was killed while it waited
    serving(bench, {"w1": 8, "dead": 8})
    fetch(bench, "w1", 8)
    fetch(bench, "dead", 8)
    # when
    bench.client.submit_many(map(str, range(8)))
    # then
    assert fetch(bench, "w1", 8)[0] == 4
    assert fetch(bench, "w1", 4)[0] == 4
