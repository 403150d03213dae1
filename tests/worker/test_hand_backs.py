"""Where all slots are taken, a running job makes room for one of a higher priority."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from rose.engine_records import StepOutput
from rose.protocol import JobSpec, Partition, Priority
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import AsyncClient, Client, Tenants
from rose_worker.engine import Engine, Prepared
from rose_worker.main import loader
from rose_worker.service import Worker
from rose_worker.settings import WorkerSettings
from tests.conftest import needs_redis_server
from tests.support.bench import until, wait_until
from tests.support.echo import SLOW, StartWorker, echoed, has_no_jobs, running

pytestmark = needs_redis_server

_HIGH = Priority.HIGH
_SLOTS = 4


class GatedEngine:
    """Takes a step when it is told to."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.model, self.capacity = engine.model, engine.capacity
        self.vocabulary, self.stats = engine.vocabulary, engine.stats
        self.add, self.abort = engine.add, engine.abort
        self.gate = threading.Semaphore(0)
        self.is_open = threading.Event()
        self.is_open.set()

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    def prepare(self, job: JobSpec, generated_ids: Sequence[int]) -> Prepared:
        return self._engine.prepare(job, generated_ids)

    def step(self, only: str | None = None) -> list[StepOutput]:
        while not self.is_open.is_set():
            if self.gate.acquire(timeout=0.01):
                break
        return self._engine.step(only)


def test_it_starts_within_two_steps_and_no_text_changes(
    broker: EmbeddedBroker, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    caplog.set_level(logging.INFO, "rose.admission")
    given: dict[str, Any] = {"redis_url": broker.url, "queue": queue}
    settings = WorkerSettings(
        **given,
        device="cpu",
        max_batch_size=_SLOTS,
        hand_backs=2,
        http_port=0,
        lease_s=300,
        stall_timeout_s=300,
        grace_s=0,
    )
    engine: GatedEngine | None = None

    def load() -> GatedEngine:
        nonlocal engine
        engine = GatedEngine(loader(settings)())
        return engine

    def is_taken(job_id: str) -> bool:
        return any(f"job {job_id} taken" in record.getMessage() for record in caplog.records)

    async def serve() -> None:
        worker = asyncio.create_task(Worker(settings, load).run())
        try:
            async with AsyncClient(**given) as client:
                await _try(client)
        finally:
            if engine is not None:
                engine.is_open.set()
            worker.cancel()
            await asyncio.wait([worker])

    async def _try(client: AsyncClient) -> None:
        prompts = [f"Once there were {n} foxes who" for n in range(_SLOTS)]

        async def submit(prompt: str, seed: int, priority: Priority) -> Any:
            return await client.submit(
                prompt,
                priority=priority,
                max_new_tokens=80,
                ignore_eos=True,
                temperature=0.9,
                seed=seed,
            )

        alone = [
            await (await submit(prompt, seed, Priority.LOW)).result(90)
            for seed, prompt in enumerate(prompts)
        ]
        assert engine is not None
        # when: all slots are taken by jobs that say something, and the engine stands in a step
        lows = [await submit(prompt, seed, Priority.LOW) for seed, prompt in enumerate(prompts)]
        for job in lows:
            events = job.stream()
            await anext(events)
            await events.aclose()
        engine.is_open.clear()
        urgent = await submit("A cat", 9, _HIGH)
        await until(lambda: is_taken(urgent.id))
        # then: this step and the next one are enough
        engine.gate.release(2)
        first = await asyncio.wait_for(anext(urgent.stream()), 90)
        assert first.index == 0
        assert first.token_ids
        # and what made room goes on at its next token
        engine.is_open.set()
        for job, whole in zip(lows, alone, strict=True):
            events = [event async for event in job.stream()]
            ids = [token_id for event in events[:-1] for token_id in event.token_ids]
            assert tuple(ids) == whole.token_ids
            assert "".join(event.text for event in events[:-1]) == whole.text
        moved = [(await job.status()).epoch for job in lows]
        assert sorted(moved) == [1] * (_SLOTS - 1) + [2]
        assert {(await job.status()).attempts for job in lows} == {1}
        assert len((await urgent.result(90)).token_ids) == 80

    asyncio.run(serve())


def test_a_job_makes_room_as_often_as_the_setting_says_and_then_runs_to_its_end(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given
    worker = start_worker(max_batch_size=1, hand_backs=1, **SLOW)
    low = client.submit("abc", max_new_tokens=300, priority="low")
    wait_until(lambda: running(low, tokens=2))
    # when
    first = client.submit("x", max_new_tokens=3, priority="high")
    assert first.result(90).token_ids == echoed(b"x", 3)
    assert low.status().status != "finished"
    wait_until(lambda: running(low) and low.status().epoch == 2)
    second = client.submit("y", max_new_tokens=3, priority="high")
    # then: the second waits for it
    assert second.result(90).token_ids == echoed(b"y", 3)
    assert low.status().status == "finished"
    events = list(low.stream(timeout_s=90))
    assert [event.index for event in events] == list(range(301))
    assert low.result(90).token_ids == echoed(b"abc", 300)
    assert low.status().epoch == 2
    assert worker.metrics()["rose_jobs_handed_back_total"] == 1
    assert has_no_jobs(raw, partition)


def test_without_the_setting_nobody_makes_room(client: Client, start_worker: StartWorker) -> None:
    # given
    worker = start_worker(max_batch_size=1, **SLOW)
    low = client.submit("abc", max_new_tokens=60, priority="low")
    wait_until(lambda: running(low))
    # when
    client.submit("x", max_new_tokens=1, priority="high").result(90)
    # then
    assert low.status().status == "finished"
    assert worker.metrics()["rose_jobs_handed_back_total"] == 0


def test_urgent_jobs_that_wait_go_before_what_made_room(
    client: Client, start_worker: StartWorker
) -> None:
    # given: more urgent jobs than slots
    start_worker(max_batch_size=2, hand_backs=9, **SLOW)
    lows = [client.submit("abc", max_new_tokens=100, priority="low") for _ in range(2)]
    for job in lows:
        wait_until(lambda job=job: running(job))
    # when
    urgent = [client.submit("x", max_new_tokens=20, priority="high") for _ in range(8)]
    # then
    for job in urgent:
        assert job.result(90).token_ids == echoed(b"x", 20)
    for job in lows:
        assert job.result(90).token_ids == echoed(b"abc", 100)
        assert job.status().epoch == 2


def test_between_tenants_only_what_passes_gets_a_slot(
    client: Client, start_worker: StartWorker
) -> None:
    # given
    with Tenants(client.settings) as tenants:
        tenants.set_passing({_HIGH})
    start_worker(max_batch_size=1, hand_backs=1, **SLOW)
    low = client.submit("abc", max_new_tokens=200, priority="low", tenant="ann")
    wait_until(lambda: running(low))
    # when
    normal = client.submit("y", max_new_tokens=1, tenant="bob")
    high = client.submit("x", max_new_tokens=1, priority="high", tenant="bob")
    # then
    assert high.result(90).token_ids == echoed(b"x", 1)
    assert low.status().status != "finished"
    assert normal.result(90).token_ids == echoed(b"y", 1)
    assert low.result(90).token_ids == echoed(b"abc", 200)


def test_a_worker_that_drains_meanwhile_loses_nothing(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given
    leaves = start_worker(max_batch_size=4, hand_backs=3, grace_s=0, lease_s=300, **SLOW)
    lows = [client.submit(f"{n:02}", max_new_tokens=60, priority="low") for n in range(4)]
    for job in lows:
        wait_until(lambda job=job: running(job))
    # when
    urgent = [client.submit("x", max_new_tokens=60, priority="high") for _ in range(4)]
    wait_until(lambda: running(urgent[0]))
    assert leaves.terminate() == 0
    start_worker(max_batch_size=4, hand_backs=3)
    # then
    for n, job in enumerate(lows):
        assert job.result(90).token_ids == echoed(f"{n:02}".encode(), 60)
        assert job.status().attempts == 1
    for job in urgent:
        assert job.result(90).token_ids == echoed(b"x", 60)
    assert has_no_jobs(raw, partition)
