"""What a fault finds, and where it writes down what it did."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import redis

from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client
from tests.chaos import clock
from tests.chaos.evidence import Stretch
from tests.chaos.fleet import Fleet
from tests.chaos.managed_process import ManagedProcess
from tests.chaos.progress import Progress
from tests.chaos.raw import RawAdder
from tests.chaos.topology import Topology
from tests.chaos.trouble import Trouble
from tests.support.proxy import Proxy

#: A process lives at least this long before a fault strikes it, so that it has jobs to lose.
UP_S = 1.2
_POLL_S = 0.02
_SERVE_S = 40.0
_ROLES = ("worker", "producer", "subscriber", "gateway")
#: Clients come back with their own backoff. Another outage before that is the same one to them.
BACK_S = 3.0
#: A producer that dies submits so many of its last jobs again, at the most; those before are not
#: touched any more.
MAX_REPEATED = 20
#: Events that a fleet which works delivers at the very least.
MIN_PER_S = 20.0


@dataclass
class Scene:
    fleet: Fleet
    topology: Topology
    product: Client
    """a client of the queue, without faults of its own"""
    raw: RawAdder
    progress: Progress
    balancer: Proxy | None = None
    """before the gateways, where there are any"""
    troubles: list[Trouble] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    """What came of the faults, by name: zombies refused, for example."""
    expired: set[int] = field(default_factory=set)
    """jobs whose results have expired on purpose"""
    retried: set[int] = field(default_factory=set)
    """poison jobs whose dead letters were retried"""
    victims: set[int] = field(default_factory=set)
    """innocent jobs whose ids stand in garbage"""
    crowd_from: int | None = None
    """a crowd follows jobs from this one on"""
    surprises: list[str] = field(default_factory=list)
    """What an expired job or a dead letter should not have done."""
    stretches: list[Stretch] = field(default_factory=list)
    failovers: list[tuple[float, float]] = field(default_factory=list)
    unfinished_crowds: int = 0
    """whose streams had not all ended when their jobs must have"""
    holds: bool = False
    """No more jobs are submitted, until it does not."""
    redis_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Who holds it has a Redis that is up, and in reach of all, or is itself the cause."""

    @asynccontextmanager
    async def acquired(self, role: str, target: int) -> AsyncIterator[ManagedProcess]:
        """The one that the fault is meant for, or the next one that no other fault has."""
        processes = [process for process in self.fleet.processes if process.role == role]
        start = target % len(processes)
        while True:
            for process in processes[start:] + processes[:start]:
                if not process.lock.locked() and process.up_s > UP_S and process.serving:
                    async with process.lock:
                        yield process
                    return
            await asyncio.sleep(_POLL_S)

    def is_protected(self, number: int) -> bool:
        """Whether somebody may still ask for this job, though it has ended."""
        if number in self.victims or (self.crowd_from is not None and number >= self.crowd_from):
            return True
        producers = self.fleet.count("producer")
        return number >= self.progress.latest(number) - MAX_REPEATED * producers

    def proxy(self, target: int, *roles: str) -> tuple[str, Proxy]:
        """Of a process, drawn among those of these roles, or among all."""
        proxies = self.topology.proxies
        names = [name for name in proxies if name.partition("-")[0] in (roles or _ROLES)]
        names = names or list(proxies)  # those of nodes are everybody's
        name = names[target % len(names)]
        return name, proxies[name]

    def node(self, target: int) -> tuple[EmbeddedBroker, redis.Redis, frozenset[int]]:
        """A server, a client of it, and the partitions on it."""
        node = self.topology.nodes[target % len(self.topology.nodes)]
        return node, self.topology.client(node), self.topology.on(node)

    def partition(self, target: int) -> tuple[Partition, redis.Redis]:
        partition = self.topology.partitions[target % len(self.topology.partitions)]
        return partition, self.topology.client_of(partition)

    async def workers_serve(self) -> None:
        """Until all of them do, or it takes too long. So what is measured is the fault's doing."""
        deadline = clock.now() + _SERVE_S
        while clock.now() < deadline:
            if all(worker.up_s > UP_S and worker.serving for worker in self.fleet.workers):
                return
            await asyncio.sleep(_POLL_S)

    async def fenced(self, worker: ManagedProcess) -> float:
        """How many appends of this life have been refused."""
        gauges = await asyncio.to_thread(self.fleet.gauges, worker)
        return gauges.get("rose_fenced_appends_total", 0.0)

    async def measure(
        self,
        what: str,
        for_s: float,
        partitions: frozenset[int] | None = None,
        *,
        min_per_s: float = MIN_PER_S,
    ) -> None:
        """What is delivered in so many seconds, of these partitions, while something is wrong."""

        def delivered() -> int:
            counts = self.progress.events.items()
            return sum(n for index, n in counts if partitions is None or index in partitions)

        began, before = clock.now(), delivered()
        await asyncio.sleep(for_s)
        events = delivered() - before
        self.stretches.append(Stretch(what, began, for_s, events, min_per_s, partitions))
