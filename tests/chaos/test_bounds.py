"""How long jobs waited, counted in the time in which a worker could have had them."""

import pytest

from rose.protocol import EntryKey, Partition
from tests.chaos.bounds import Bounds
from tests.chaos.context import AGEING_S, QUEUE, STALL_S
from tests.chaos.evidence import Evidence, Stretch, Take
from tests.chaos.managed_process import End, Life
from tests.chaos.plan import Plan
from tests.chaos.trouble import Trouble


def a_loss(*troubles: Trouble, **befell: object) -> Evidence:
    """worker-0 had a job from 10 on; it went on at 20 on worker-1, which started at 0."""
    return Evidence(
        plan=Plan(1, 10),
        drain_limit_s=5.0,
        lives=[Life("worker-0", 0, 0.0), Life("worker-1", 0, 0.0)]
        if not befell
        else [Life("worker-0", 0, 0.0, **befell), Life("worker-1", 0, 0.0)],  # type: ignore[arg-type]
        takes=[Take(10.0, "a", 0, "worker-0.0"), Take(20.0, "a", 3, "worker-1.0")],
        serving={"worker-0.0": 1.0, "worker-1.0": 1.0},
        troubles=list(troubles),
    )


@pytest.mark.parametrize(
    ("run", "seconds"),
    [
        (a_loss(ended=14.0, end=End.KILLED), [6.0]),
        (a_loss(ended=14.0, end=End.POISONED), [6.0]),
        (a_loss(stopped=[(15.0, 19.0)]), [5.0]),
        (a_loss(Trouble(12.0, 19.0, "hung step", "worker-0")), [20.0 - 12.0 - STALL_S]),
        # while Redis is away, or the other worker is cut off, nobody could have had it
        (a_loss(Trouble(15.0, 17.0, "restart"), ended=14.0, end=End.KILLED), [4.0]),
        (a_loss(Trouble(15.0, 17.0, "cut", "worker-1"), ended=14.0, end=End.KILLED), [4.0]),
        # trouble elsewhere
        (
            a_loss(Trouble(15.0, 17.0, "x", None, frozenset({1})), ended=14.0, end=End.KILLED),
            [6.0],
        ),
        # it was handed back, not lost
        (a_loss(told_at=12.0, ended=14.0, end=End.DRAINED), []),
    ],
)
def test_how_long_a_takeover_took(run: Evidence, seconds: list[float]) -> None:
    assert [wait.seconds for wait in Bounds(run).takeovers] == seconds


def test_a_worker_that_hung_before_it_began_had_the_job() -> None:
    # given: at 16 a worker was given the job, and was lost before it began
    run = a_loss(ended=14.0, end=End.KILLED)
    run.given = [Take(16.0, "a", 0, "worker-2.0")]
    run.lives.append(Life("worker-2", 0, 0.0, ended=17.0, end=End.KILLED))
    # when / then: these are two takeovers
    assert [wait.since for wait in Bounds(run).takeovers] == [14.0, 17.0]


def test_nobody_is_owed_what_nobody_had_a_core_for() -> None:
    # given
    run = a_loss(ended=14.0, end=End.KILLED)
    # when
    run.starved = [Trouble(15.0, 16.0, "core", "worker-1"), Trouble(17.0, 17.5, "core")]
    # then
    assert [wait.seconds for wait in Bounds(run).takeovers] == [4.5]
    # and it explains nothing
    assert run.befell.during("worker-1", 0, 14.0, 20.0) is None


def test_who_made_room_before_its_worker_was_lost_waits_for_its_turn() -> None:
    run = a_loss(ended=14.0, end=End.KILLED)
    run.handed_back = [Take(13.0, "a", 2, "worker-0.0")]
    assert Bounds(run).takeovers == []
    # also where its engine began on it after that
    run.handed_back, run.given = (
        [Take(9.5, "a", 0, "worker-0.0")],
        [Take(9.0, "a", 0, "worker-0.0")],
    )
    assert Bounds(run).takeovers == []
    # and where it was given it once more before it began at all
    given, taken = (Take(at, "a", 0, "worker-0.0") for at in (9.6, 10.1))
    run.given.append(given)
    run.takes.append(taken)
    assert run.made_room(run.takes[0], taken.at)
    run.given.remove(given)
    run.takes.remove(taken)
    run.handed_back, run.given = [Take(8.0, "a", 2, "worker-0.0")], []
    assert [wait.seconds for wait in Bounds(run).takeovers] == [6.0]


@pytest.mark.parametrize(
    ("run", "owed_s"),
    [
        (a_loss(), 8.5),
        # the fault itself is no excuse
        (a_loss(Trouble(10.0, 20.0, "memory")), 8.5),
        # nobody serves: one is dead, another one only starts
        (a_loss(Trouble(11.0, 14.0, "cut", "worker-1"), ended=10.0, end=End.KILLED), 5.5),
        (a_loss(Trouble(10.0, 20.0, "cut", "worker-1"), ended=10.0, end=End.KILLED), 0.0),
        (a_loss(Trouble(11.0, 14.0, "cut", "worker-1")), 8.5),
    ],
)
def test_events_are_owed_for_the_time_in_which_somebody_could_have_worked(
    run: Evidence, owed_s: float
) -> None:
    stretch = Stretch("memory", 10.0, 10.0, 0, 1.0)
    assert Bounds(run).owed_s(stretch) == owed_s
    # and not while those have no core who submit and receive
    run.starved = [Trouble(15.0, 16.0, "core", "producer-0")]
    assert Bounds(run).owed_s(stretch) == max(0.0, owed_s - 1.0)


def in_a_queue(*jobs: tuple[str, int, float, float]) -> Evidence:
    """Of each: its name, its priority's level, when it came and when it began."""
    streams = Partition(QUEUE).all_jobs
    run = a_loss()
    run.takes = sorted(
        (Take(began, name, 0, "worker-0.0") for name, _, _, began in jobs), key=lambda t: t.at
    )
    run.redis.entries = {
        name: EntryKey(streams[level], f"{int(came * 1000)}-0") for name, level, came, _ in jobs
    }
    return run


@pytest.mark.parametrize(
    ("run", "behind"),
    [
        (in_a_queue(("a", 0, 10, 20), ("b", 0, 12, 21)), {}),
        (in_a_queue(("a", 0, 10, 25), ("b", 0, 12, 21)), {"a": 4.0}),
        (in_a_queue(("a", 0, 10, 25), ("b", 0, 10.5, 21)), {}),  # came at about the same time
        (in_a_queue(("low", 2, 10, 25), ("high", 0, 10 + AGEING_S, 21)), {}),
        (in_a_queue(("low", 2, 10, 25), ("high", 0, 12 + 2 * AGEING_S, 21)), {"low": 4.0}),
        (in_a_queue(("a", 0, 10, 25), ("b", 0, 12, 23), ("c", 0, 14, 21)), {"a": 4.0, "b": 2.0}),
    ],
)
def test_who_was_behind_one_that_came_later(run: Evidence, behind: dict[str, float]) -> None:
    assert {wait.job_id: wait.seconds for wait in Bounds(run).behind} == behind
