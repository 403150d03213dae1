"""The thread between asyncio and the engine, with an engine that does as the test says."""

import asyncio
import threading

import pytest

from rose.engine_records import StepOutput
from rose.protocol import JobSpec
from rose_worker.engine import EngineThread
from rose_worker.null_engine import NullEngine
from rose_worker.settings import WorkerSettings
from tests.support.bench import until


class GatedEngine(NullEngine):
    """A null engine whose steps wait until the test lets them go."""

    def __init__(self) -> None:
        super().__init__(WorkerSettings())
        self.gate = threading.Semaphore(0)
        self.fails = False
        self.in_step = False
        self.stepped_alone: list[str | None] = []

    def step(self, only: str | None = None) -> list[StepOutput]:
        self.in_step = True
        self.gate.acquire()
        if self.fails:
            raise RuntimeError("the device is gone")
        self.stepped_alone.append(only)
        return super().step(only)


def add(thread: EngineThread, engine: NullEngine, job_id: str, *, alone: bool = False) -> int:
    return thread.add(engine.prepare(JobSpec(id=job_id, prompt="a"), []), alone=alone)


def make(engine: NullEngine, *, max_reports: int = 100, min_step_s: float = 0.0) -> EngineThread:
    thread = EngineThread(engine, max_reports=max_reports, min_step_s=min_step_s)
    thread.start(on_report=lambda: None)
    return thread


async def test_decoding_pauses_when_nobody_takes_the_reports() -> None:
    # given
    engine = GatedEngine()
    thread = make(engine, max_reports=3)
    add(thread, engine, "a")
    engine.gate.release(10)
    # when: the fourth step's report finds no room
    await until(lambda: len(engine.stepped_alone) == 4)
    await asyncio.sleep(0.05)
    # then: it waits, which is not a stall, and loses nothing
    assert len(engine.stepped_alone) == 4
    assert thread.stalled_s == 0
    indexes = []
    while len(indexes) < 10:
        while report := thread.take_report():
            indexes += [output.index for output in report.outputs]
        await asyncio.sleep(0.005)
    assert indexes == list(range(10))
    engine.gate.release(10_000)
    await thread.stop()


async def test_a_step_that_does_not_return_is_a_stall_and_idleness_is_none() -> None:
    # given
    idle, hung = make(NullEngine(WorkerSettings())), make(engine := GatedEngine())
    add(hung, engine, "a")
    # when
    await until(lambda: hung.stalled_s > 0.05)
    # then
    assert idle.stalled_s == 0
    engine.gate.release(10_000)
    await idle.stop()
    await hung.stop()
    assert not idle.alive


async def test_an_engine_that_fails_ends_the_thread_with_its_error() -> None:
    # given
    engine = GatedEngine()
    thread = make(engine)
    add(thread, engine, "a")
    engine.fails = True
    # when
    engine.gate.release()
    # then
    with pytest.raises(RuntimeError, match="device is gone"):
        await asyncio.wait_for(thread.ended, 90)
    assert not thread.alive


async def test_what_runs_alone_makes_the_others_pause_until_it_has_a_token() -> None:
    # given: one that runs, and is under way
    engine = NullEngine(WorkerSettings())
    reports: list[list[str]] = []
    thread = make(engine, min_step_s=0.001)

    def stepped(job_id: str) -> bool:
        while report := thread.take_report():
            reports.append([output.request_id for output in report.outputs])
        return any(job_id in report for report in reports)

    add(thread, engine, "running")
    await until(lambda: stepped("running"))
    # when
    add(thread, engine, "suspect", alone=True)
    await until(lambda: stepped("suspect") and ["running", "suspect"] in reports)
    # then
    assert next(report for report in reports if "suspect" in report) == ["suspect"]
    await thread.stop()


async def test_a_suspect_that_is_aborted_holds_nobody_up() -> None:
    # given: it cannot have a token before it is aborted
    engine = GatedEngine()
    thread = make(engine)
    add(thread, engine, "other")
    add(thread, engine, "suspect", alone=True)
    # when
    thread.abort("suspect")
    engine.gate.release(3)
    # then
    await until(lambda: len(engine.stepped_alone) == 3)
    assert engine.stepped_alone[-1] is None
    engine.gate.release(10_000)
    await thread.stop()


async def test_an_aborted_job_is_in_no_step_that_begins_afterwards() -> None:
    # given: two jobs, and a step under way
    engine = GatedEngine()
    thread = make(engine)
    add(thread, engine, "goes")
    add(thread, engine, "stays")
    await until(lambda: engine.in_step)
    # when
    thread.abort("goes")
    engine.gate.release(3)
    # then
    steps: list[set[str]] = []
    while len(steps) < 3:
        if report := thread.take_report():
            steps.append({output.request_id for output in report.outputs})
        await asyncio.sleep(0.001)
    assert steps[1:] == [{"stays"}, {"stays"}]
    engine.gate.release(10_000)
    await thread.stop()


async def test_a_report_says_which_jobs_had_been_added() -> None:
    # given
    engine = GatedEngine()
    thread = make(engine)
    assert add(thread, engine, "a") == 1
    await until(lambda: engine.in_step)
    # when: a job comes while the step of another one runs
    assert add(thread, engine, "b") == 2
    engine.gate.release(2)
    # then
    await until(lambda: len(engine.stepped_alone) == 2)
    engine.gate.release(10_000)
    await thread.stop()
    reports = [report for _ in range(2) if (report := thread.take_report())]
    assert [report.added for report in reports] == [1, 2]
    assert [len(report.outputs) for report in reports] == [1, 2]
