"""A whole run: jobs are fed, faults strike, and what is left is looked at."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import redis

from rose.protocol.tenants import TenantLimits
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client
from rose_producer.tenants import Tenants
from tests.chaos.context import DRAIN_LIMIT_S, QUEUE, RESULT_TTL_S, Options
from tests.chaos.evidence import (
    Evidence,
    RedisState,
    expire_all,
    note_first_takes,
    read_crowds,
    read_partition,
    read_raised,
    read_workers,
)
from tests.chaos.faults import FaultInjector
from tests.chaos.faults.scene import Scene
from tests.chaos.fleet import Fleet, names
from tests.chaos.journal import Journal
from tests.chaos.losses import numbers_near
from tests.chaos.managed_process import End, watch
from tests.chaos.patience import came_true
from tests.chaos.progress import Progress
from tests.chaos.raw import RawAdder
from tests.chaos.settler import Settler
from tests.chaos.starved import Starvation
from tests.chaos.tenants import tenant_plans
from tests.chaos.topology import topology_of
from tests.chaos.trouble import Trouble
from tests.chaos.versions import checked_out

_SETTLE_S = 20.0
_TICK_S = 0.1
#: How often it is looked who waits for a core.
_CORES_S = 0.25
#: Of the client of the harness, which on a cluster meets the faults of the nodes as others do.
_RETRIES = 10
#: Jobs in flight after the last planned one, as long as faults are left to strike.
_EXTRA = 30
#: In turn so many jobs come with slots to spare, and so many in a rush.
_RUSH = 20
#: If a PING takes longer, a worker may have lost a lease.
_HELD_UP_S = 0.3
#: The queue's own keys: three streams, dead letters, load, model, reclaim, three of idle workers;
#: and the list of queues. Where there are tenants: their stream, limits, clock, and wake-ups.
_OWN_KEYS, _SHARED_KEYS, _TENANT_KEYS = 10, 1, 4


class ChaosRun:
    def __init__(self, options: Options, folder: Path, on_tick: Callable[[ChaosRun], None]) -> None:
        self.options = options
        self.folder = folder
        self.topology = topology_of(options, folder, names(options))
        self.plan = options.plan(len(self.topology.partitions))
        self.progress = Progress(folder, options.producers)
        self._on_tick = on_tick
        self._stalls: list[Trouble] = []
        self._starved: list[Starvation] = []
        self._jobs = options.jobs
        """so many are submitted through the client at least"""
        self._submits = 0
        """so many may be submitted by now"""

    async def run(self) -> Evidence:
        """Raises: TimeoutError: the workers do not start."""
        topology = self.topology
        with (
            checked_out(self.options.old, self.folder) as old,
            topology,
            Client(
                redis_url=topology.direct_url,
                queue=QUEUE,
                partitions=len(topology.partitions),
                redis_retries=_RETRIES,
                result_ttl_s=RESULT_TTL_S,
            ) as product,
            Fleet(self.options, self.folder, topology, old) as fleet,
        ):
            journal = Journal(self.folder / "submitted-raw.jsonl")
            raw = RawAdder(topology.partitions, topology.client_of, self.plan, journal)
            self.scene = Scene(fleet, topology, product, raw, self.progress)
            self.injector = FaultInjector(
                self.scene, self.options.jobs, self.options.faults_at_once
            )
            self._settler = Settler(self.scene, self.plan)
            await fleet.wait_up(self._has_groups)
            self._limit_tenants(product)
            memory = self._memory()
            self.progress.last_news = time.monotonic()  # patience does not count the start-up
            async with self._background(fleet):
                await self._feed_jobs(fleet)
            evidence = await self._gather_evidence(fleet, raw)
            evidence.redis.memory_before = memory
            return evidence

    def interrupt(self) -> None:
        """Submit nothing more, let no fault strike, and look at what there is when it has ended.

        Raises: RuntimeError: the run has not begun.
        """
        if self._submits == 0:
            raise RuntimeError("no job was submitted yet")
        self.injector.interrupted = True
        self._jobs = min(self._jobs, self._submits)

    async def _feed_jobs(self, fleet: Fleet) -> None:
        """Feed jobs until all have ended and every fault has struck."""
        faults = asyncio.create_task(self.injector.run(self.plan.faults(**self.options.faults)))
        try:
            while not (faults.done() and self._all_ended()):
                if faults.done():
                    faults.result()
                self.progress.update()
                self._on_tick(self)
                if not (self.scene.holds or self.injector.interrupted):
                    self._submits = max(self._submits, self._limit(faults.done()))
                fleet.set_limit(self._submits)
                if self.progress.silent_s > self.options.patience_s:
                    return
                await asyncio.sleep(_TICK_S)
        finally:
            faults.cancel()
            await asyncio.gather(faults, return_exceptions=True)

    def _limit(self, faults_over: bool) -> int:
        """Jobs below this number may be submitted. The last faults must not strike at nothing."""
        ended, jobs = self.progress.jobs_ended, self.options.jobs
        rush = self.options.rush if ended // _RUSH % 2 else 0
        limit = min(jobs, ended + self.options.window + rush)
        return limit if faults_over else max(limit, ended + _EXTRA)

    def _all_ended(self) -> bool:
        limit = self._submits
        return limit >= self._jobs and self.progress.knows(limit) and self.progress.all_ended

    async def _gather_evidence(self, fleet: Fleet, raw: RawAdder) -> Evidence:
        """All is over: let it settle, drain the workers, and gather what is left."""
        await came_true(self._is_idle, _SETTLE_S)
        gauges = await _idle_gauges(fleet)
        await _drain_workers(fleet)
        self.progress.update()
        state = self._read_redis()
        notes = read_workers(self.folder)
        note_first_takes(state.tenants, notes.takes)
        await self._measure_memory(state)
        return Evidence(
            plan=self.plan,
            drain_limit_s=DRAIN_LIMIT_S,
            submitted=self.progress.submissions,
            raw_entries=raw.entries,
            delivered=self.progress.delivered,
            settled=self.progress.settled,
            found=[*self._settler.found, *self.progress.late],
            interrupted=self.injector.interrupted,
            expired=frozenset(self.scene.expired),
            retried=frozenset(self.scene.retried),
            surprises=self.scene.surprises,
            failovers=self.scene.failovers,
            near_failovers=numbers_near(self.folder, self.scene.failovers),
            stretches=self.scene.stretches,
            garbage=raw.garbage,
            failures=raw.failures,
            lives=[life for process in [*fleet.processes, fleet.crowd] for life in process.lives],
            takes=notes.takes,
            given=notes.given,
            handed_back=notes.handed_back,
            crowds=read_crowds(self.folder),
            unfinished_crowds=self.scene.unfinished_crowds,
            connections=fleet.connections,
            serving=notes.serving,
            raised=read_raised(self.folder),
            troubles=[
                *self.scene.troubles,
                *self._stalls,
                *self.topology.cut_troubles(),
                *notes.delays,
            ],
            starved=[span for one in self._starved for span in one.spans],
            cuts=self.topology.cuts,
            gauges=gauges,
            redis=state,
        )

    async def _measure_memory(self, state: RedisState) -> None:
        """Once no more keys are left than a queue has for good."""
        nodes = [self.topology.client(node) for node in self.topology.nodes]
        a_partition = _OWN_KEYS + (_TENANT_KEYS if self.options.tenants else 0)
        own_keys = a_partition * len(self.topology.partitions) + _SHARED_KEYS
        await came_true(lambda: sum(int(node.dbsize()) for node in nodes) <= own_keys, _SETTLE_S)
        state.memory_after, state.nodes = self._memory(), len(nodes)

    def _read_redis(self) -> RedisState:
        """What is there, and then what is left once every result has expired."""
        state, topology = self._settler.state, self.topology
        settled = self._settler.ids
        job_ids = {job_id for _, job_id in self.progress.submissions} - settled
        for partition in topology.partitions:
            read_partition(state, topology.client_of(partition), partition, job_ids)
        for node in topology.nodes:
            expire_all(topology.client(node), topology.partitions, state, settled)
        return state

    def _limit_tenants(self, product: Client) -> None:
        plans = tenant_plans(self.plan.seed, self.plan.tenants, self.plan.partitions)
        with Tenants(product.settings) as tenants:
            for plan in plans:
                limits = TenantLimits(
                    weight=plan.weight,
                    max_running_jobs=plan.max_running,
                    max_queued_jobs=plan.max_queued,
                )
                tenants.set(plan.name, limits)
            if self.plan.passing is not None:
                tenants.set_passing([self.plan.passing])

    def _memory(self) -> int:
        infos = [self.topology.client(node).info("memory") for node in self.topology.nodes]
        return sum(int(info["used_memory"]) for info in infos)

    def _has_groups(self) -> bool:
        partitions = self.topology.partitions
        return all(
            self.topology.client_of(partition).exists(*partition.all_jobs)
            == len(partition.all_jobs)
            for partition in partitions
        )

    def _is_idle(self) -> bool:
        return not any(
            self.topology.client_of(partition).xlen(stream)
            for partition in self.topology.partitions
            for stream in partition.all_streams
        )

    @asynccontextmanager
    async def _background(self, fleet: Fleet) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(watch(fleet.processes)),
            *(asyncio.create_task(self._ping(node)) for node in self.topology.nodes),
            asyncio.create_task(self._look_for_cores(fleet)),
        ]
        # What other engines say is known at the end only.
        self._settler.over = self.options.engine != "null"
        settles = asyncio.create_task(self._settler.run())
        try:
            yield
        finally:
            self._settler.over = True  # never between a check and what follows it
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(settles, *tasks, return_exceptions=True):
                if isinstance(result, Exception):  # a finding: the report says what it knows
                    self.scene.surprises.append(f"the harness: {result!r}")

    async def _ping(self, node: EmbeddedBroker) -> None:
        """Notes when Redis itself is held up, by the machine or its disk."""
        client = self.topology.client(node)
        while True:
            began = time.time()
            with contextlib.suppress(redis.RedisError):
                await asyncio.to_thread(client.ping)
            if time.time() - began > _HELD_UP_S:
                trouble = Trouble(
                    began, time.time() + 1.0, "Redis was held up", None, self.topology.on(node)
                )
                self._stalls.append(trouble)
            await asyncio.sleep(_TICK_S)

    async def _look_for_cores(self, fleet: Fleet) -> None:
        processes = [(Starvation(process.name), process) for process in fleet.processes]
        nodes = [(Starvation(None, self.topology.on(node)), node) for node in self.topology.nodes]
        harness = Starvation(None)  # its proxies
        self._starved = [harness, *(one for one, _ in processes), *(one for one, _ in nodes)]
        while True:
            for starvation, process in processes:
                starvation.look(process.pid)
            for starvation, node in nodes:
                starvation.look(node.pid)
            harness.look(os.getpid())
            await asyncio.sleep(_CORES_S)


async def _idle_gauges(fleet: Fleet) -> dict[str, dict[str, float]]:
    """What the workers say of their batch and cache; they get a moment to come to rest."""
    await came_true(lambda: all(_at_rest(fleet.gauges(worker)) for worker in fleet.workers), 5.0)
    return {worker.name: fleet.gauges(worker) for worker in fleet.workers}


async def _drain_workers(fleet: Fleet) -> None:
    for worker in fleet.workers:
        async with worker.lock:
            await worker.drain()
    for process in fleet.processes:
        process.notice_end()
        process.kill(End.OVER)


def _at_rest(gauges: dict[str, float]) -> bool:
    return gauges.get("rose_batch_sequences") == 0 == gauges.get("rose_kv_cache_usage_ratio")
