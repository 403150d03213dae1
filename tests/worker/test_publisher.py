"""What waits for a partition that does not answer, while another does."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

from rose.engine_records import SchedulerStats, StepOutput
from rose.protocol import EntryKey, JobSpec, Partition
from rose.protocol.calls import Append, Lease
from rose_worker.broker import Broker
from rose_worker.engine import EngineThread, ModelInfo, StepReport
from rose_worker.jobs import HeldJob, JobTable
from rose_worker.leases import LeaseKeeper
from rose_worker.metrics import Metrics
from rose_worker.publisher import Publisher
from rose_worker.settings import WorkerSettings
from rose_worker.tasks import cancel_all
from rose_worker.tracing import Tracing
from tests.support.bench import until

SILENT, WELL = Partition("q", 0), Partition("q", 1)
#: More steps than may wait in all, and fewer than a silent partition may keep.
MANY = 5000


class Redis:
    """One of the partitions never answers."""

    partitions = (SILENT, WELL)

    def __init__(self) -> None:
        self.stored = 0

    async def renew(self, entries: Iterable[EntryKey]) -> set[EntryKey]:
        """All are another worker's."""
        return set(entries)

    async def publish(self, partition: Partition, items: Sequence[Append]) -> list[str]:
        if partition == SILENT:
            await asyncio.Event().wait()
        self.stored += sum(sum(item.counts) for item in items)
        return ["OK"] * len(items)


class Engine:
    """Reports that wait to be taken."""

    def __init__(self) -> None:
        self.reports: deque[StepReport] = deque()
        self.aborted: list[str] = []

    def step(self, index: int, *job_ids: str, added: int = 0) -> None:
        outputs = [StepOutput(job_id, index, (1,), "x", None) for job_id in job_ids]
        self.reports.append(StepReport(outputs, SchedulerStats(), added=added))

    def take_report(self) -> StepReport | None:
        return self.reports.popleft() if self.reports else None

    def abort(self, job_id: str) -> None:
        self.aborted.append(job_id)


class Scene:
    def __init__(self) -> None:
        self.redis, self.engine, self.table = Redis(), Engine(), JobTable(8)
        self.metrics = Metrics(ModelInfo("m", 100, 4, "cpu", "float32"), capacity=8)
        self.traced: list[tuple[HeldJob, str]] = []
        self.publisher = Publisher(
            cast("Broker", self.redis),
            cast("EngineThread", self.engine),
            self.table,
            self.metrics,
            cast("Tracing", self),
        )

    def left(self, job: HeldJob, now: float, why: str) -> None:
        """In place of tracing."""
        self.traced.append((job, why))

    def hold(self, partition: Partition, *, alone: bool = False, added: int = 0) -> HeldJob:
        job_id = f"{partition.index}-job"
        lease = Lease(partition, EntryKey("jobs", f"1-{partition.index}"), job_id, "a")
        spec = JobSpec(id=job_id, prompt="x")
        job = HeldJob(spec, lease, 0, 1, 0.0, resumed=False, alone=alone, added=added)
        self.table.add(job)
        return job


@asynccontextmanager
async def publishing() -> AsyncIterator[Scene]:
    scene = Scene()
    running = asyncio.create_task(scene.publisher.run())
    yield scene
    await cancel_all([running])


async def test_a_silent_partition_does_not_hold_up_another() -> None:
    async with publishing() as scene:
        # given
        jobs = [scene.hold(SILENT), scene.hold(WELL)]
        # when
        for index in range(MANY):
            scene.engine.step(index, *(job.spec.id for job in jobs))
        scene.publisher.collect()
        # then
        await until(lambda: scene.redis.stored == MANY)
        assert not scene.engine.aborted


async def test_decoding_pauses_if_nobody_answers() -> None:
    async with publishing() as scene:
        # given
        job = scene.hold(SILENT)
        # when
        for index in range(MANY):
            scene.engine.step(index, job.spec.id)
        scene.publisher.collect()
        await asyncio.sleep(1.5)  # longer than it takes to be blocked
        # then
        assert len(scene.engine.reports) > 0
        # when: a job of the other partition comes
        other = scene.hold(WELL)
        scene.engine.step(0, other.spec.id)
        # then: the reports are taken again
        await until(lambda: scene.redis.stored == 1)


async def test_the_job_of_a_silent_partition_is_given_up_when_too_much_waits() -> None:
    async with publishing() as scene:
        # given
        job, other = scene.hold(SILENT), scene.hold(WELL)
        # when
        for index in range(60_000):
            scene.engine.step(index, job.spec.id, *([other.spec.id] if index < MANY else []))
        scene.publisher.collect()
        # then
        await until(lambda: scene.engine.aborted == [job.spec.id])
        assert scene.table.get(job.spec.id) is None
        await until(lambda: scene.redis.stored == MANY and not scene.engine.reports)
        assert scene.table.holds(other)


async def test_a_suspect_that_has_a_token_holds_up_no_other_partition() -> None:
    async with publishing() as scene:
        # given
        suspect = scene.hold(SILENT, alone=True)
        await asyncio.sleep(0)
        assert scene.table.replays_a_suspect
        # when
        scene.engine.step(0, suspect.spec.id)
        scene.publisher.collect()
        # then
        await until(lambda: not scene.table.replays_a_suspect)


async def test_what_was_computed_before_a_job_was_taken_again_is_not_its_text() -> None:
    async with publishing() as scene:
        # given: steps whose reports nobody has taken when the lease was lost
        earlier = scene.hold(WELL, added=1)
        for index in range(3):
            scene.engine.step(index, earlier.spec.id, added=1)
        scene.table.pop(earlier.spec.id)
        # when
        again = scene.hold(WELL, added=2)
        scene.engine.step(0, again.spec.id, added=2)
        scene.publisher.collect()
        # then
        await until(lambda: scene.redis.stored == 1)
        assert again.logged == 1


async def test_a_lease_that_is_lost_at_its_renewal_is_counted_and_traced() -> None:
    # given
    scene = Scene()
    job = scene.hold(WELL)
    engine = cast("EngineThread", SimpleNamespace(stalled_s=0.0))
    keeper = LeaseKeeper(
        WorkerSettings(engine="null", lease_s=0.5),
        cast("Broker", scene.redis),
        engine,
        scene.publisher,
        scene.table,
        scene.metrics,
    )
    # when
    renewing = asyncio.create_task(keeper.run())
    await until(lambda: not scene.table.holds(job))
    await cancel_all([renewing])
    # then
    assert scene.engine.aborted == [job.spec.id]
    assert scene.traced == [(job, "lease_lost")]
    assert scene.metrics.registry.get_sample_value("rose_leases_lost_total", {"model": "m"}) == 1
