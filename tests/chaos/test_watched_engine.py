"""What a job's metadata makes the engine of a chaos worker do."""

import threading
from pathlib import Path

import pytest

from rose.protocol import JobSpec
from rose_worker.null_engine import NullEngine
from rose_worker.settings import WorkerSettings
from tests.chaos import journal, watched_engine
from tests.chaos.a_context import a_context
from tests.chaos.context import hang_file, healed_file
from tests.chaos.journal import Journal
from tests.chaos.watched_engine import WatchedEngine


@pytest.fixture
def engine(tmp_path: Path) -> WatchedEngine:
    journal = Journal(tmp_path / "journal")
    return WatchedEngine(NullEngine(WorkerSettings()), journal, a_context(tmp_path))


def begin(engine: WatchedEngine, job_id: str, **metadata: int) -> None:
    job = JobSpec(
        id=job_id, prompt="abcdef", sampling={"max_new_tokens": 6}, metadata=dict(metadata)
    )
    engine.add(engine.prepare(job, ()))


def said(engine: WatchedEngine) -> dict[str, list[int]]:
    """The positions of the tokens that a step brings, by job."""
    positions: dict[str, list[int]] = {}
    for output in engine.step():
        positions.setdefault(output.request_id, []).append(output.index)
    return positions


def test_a_job_in_portions_says_several_tokens_together_and_all_of_them(
    engine: WatchedEngine,
) -> None:
    # given
    begin(engine, "a", portions=1)
    begin(engine, "b")
    # when
    outputs = [output for _ in range(6) for output in engine.step()]
    # then
    portions = [output for output in outputs if output.request_id == "a"]
    assert "".join(output.text for output in portions) == "97 98 99 100 101 102 "
    assert [output.index for output in portions] == [
        0,
        *(output.index + len(output.token_ids) for output in portions[:-1]),
    ]
    assert len(portions) < 6
    assert len(outputs) - len(portions) == 6


def test_a_pause_holds_one_job_back_and_loses_nothing_of_it(
    engine: WatchedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setattr(watched_engine, "PAUSE_S", 1000.0)
    begin(engine, "a", pause=2)
    begin(engine, "b")
    # when
    meanwhile = [said(engine) for _ in range(6)]
    # then
    assert [step.get("b") for step in meanwhile] == [[n] for n in range(6)]
    assert [step.get("a") for step in meanwhile] == [[0], [1], None, None, None, None]
    # when: the pause is over
    assert engine.has_work
    monkeypatch.setattr(watched_engine.time, "monotonic", lambda: float("inf"))
    # then
    assert [said(engine) for _ in range(4)] == [{"a": [n]} for n in range(2, 6)]
    assert not engine.has_work


def test_a_step_hangs_as_long_as_the_file_is_there(engine: WatchedEngine, tmp_path: Path) -> None:
    # given
    begin(engine, "a")
    hang = hang_file(tmp_path, "worker-0", "step")
    hang.touch()
    steps: list[dict[str, list[int]]] = []
    thread = threading.Thread(target=lambda: steps.append(said(engine)))
    # when
    thread.start()
    thread.join(0.2)
    # then
    assert thread.is_alive()
    hang.unlink()
    thread.join(90)
    assert steps == [{"a": [0]}]


def test_a_poison_kills_until_it_is_healed(
    engine: WatchedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    killed: list[int] = []
    monkeypatch.setattr(watched_engine.os, "kill", lambda pid, signum: killed.append(signum))
    begin(engine, "a", poison=0, number=7)
    # when
    said(engine)
    # then
    assert killed
    assert list(journal.read(tmp_path, "journal"))[-1][1][1:] == ["poisoned", "a", 0]
    # when
    killed.clear()
    healed_file(tmp_path, 7).touch()
    begin(engine, "b", poison=0, number=7)
    engine.abort("a")
    said(engine)
    # then
    assert killed == []
