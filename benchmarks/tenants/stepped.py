"""A worker without a clock: it calls the queue's scripts as a worker does, and time is counted in
steps. So the shares that it measures are those of the scripts, however fast or busy the machine is.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rose.protocol import EntryKey, FinishedEvent, Partition, calls, decode_job
from rose.protocol.calls import Append, Lease, Take, Taken
from rose.protocol.codec import encode_tokens
from rose.transport import RedisClient

_TTL_S = 60
_AGEING_MS = 60_000
_FACTS = {"name": "null", "fingerprint": ""}
#: The scripts that it calls.
SCRIPTS = ["create_groups", "announce", "fetch", "take", "append"]


@dataclass(slots=True)
class Running:
    """A job in a slot."""

    lease: Lease
    tenant: str
    prompt: int
    """tokens, as the queue estimates them"""
    length: int
    done: int = 0


@dataclass(slots=True)
class SteppedWorker:
    redis: RedisClient
    name: str
    partitions: Sequence[Partition]
    slots: int
    tenant_of: Callable[[str], str]
    """of a job by its id"""
    tokens_a_step: int = 25
    running: list[Running] = field(default_factory=list)
    _turn: int = 0

    def announce(self) -> None:
        """Say that it lives, as a worker does now and then: tenants' jobs are parked for those that
        know of tenants."""
        for partition in self.partitions:
            self.redis.run(calls.create_groups(partition))
            self.redis.run(calls.announce(partition, self.name, _FACTS, mode="join", slots=1))

    def fill(self) -> list[str]:
        """Take jobs into the free slots. Returns the ids, in the order in which they were handed
        out."""
        begun: list[str] = []
        for turn in range(len(self.partitions)):
            free = self.slots - len(self.running)
            if free == 0:
                break
            partition = self.partitions[(self._turn + turn) % len(self.partitions)]
            begun += self._fetch(partition, free)
        self._turn += 1
        return begun

    def step(self) -> Counter[str]:
        """Each job says its next tokens, or its end. Returns the tokens by tenant, those of its
        prompt with its first ones."""
        served = Counter[str]()
        for partition in self.partitions:
            own = [job for job in self.running if job.lease.partition == partition]
            if own:
                self.redis.run(calls.append(partition, map(self._next, own), ttl_s=_TTL_S))
        for job in self.running:
            tokens = min(self.tokens_a_step, job.length - job.done)
            served[job.tenant] += tokens + (job.prompt if job.done == 0 else 0)
            job.done += tokens
        self.running = [job for job in self.running if job.done < job.length]
        return served

    def _fetch(self, partition: Partition, count: int) -> list[str]:
        call = calls.fetch(partition, self.name, count, ageing_ms=_AGEING_MS)
        jobs = {
            EntryKey(stream.decode(), entry.decode()): decode_job(raw)
            for stream, flat in self.redis.run(call)[0]
            for entry, raw in zip(flat[::2], flat[1::2], strict=True)
        }
        if not jobs:
            return []
        takes = [Take(entry, job.id) for entry, job in jobs.items()]
        replies = self.redis.run(
            calls.take(partition, takes, self.name, ttl_s=_TTL_S, mode="alone")
        )
        for take, job, reply in zip(takes, jobs.values(), replies, strict=True):
            taken = calls.taken(reply, take.take_id)
            if isinstance(taken, Taken):
                lease = Lease(partition, take.entry, job.id, take.take_id)
                length = job.sampling.max_new_tokens
                prompt = job.token_estimate - length
                self.running.append(Running(lease, self.tenant_of(job.id), prompt, length))
        return [job.id for job in jobs.values()]

    def _next(self, job: Running) -> Append:
        tokens = min(self.tokens_a_step, job.length - job.done)
        event = encode_tokens(job.done, (1,) * tokens, "x")
        ends = job.done + tokens == job.length
        end = FinishedEvent(index=job.length, reason="length", prompt_tokens=1) if ends else None
        return Append(job.lease, job.done, [tokens], [event], end)
