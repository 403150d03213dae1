"""Entries that no client of ours would add: garbage, jobs twice, equal entry ids.

Over a connection of the harness's own, past the proxy, so that what was added is known exactly.
"""

import random
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import msgpack
import redis

from rose.protocol import EntryKey, Partition, Priority
from tests.chaos.journal import Journal
from tests.chaos.plan import RAW_BASE, Plan, chaos_id

#: XADD to several streams under one id that is greater than every id in them.
#: Not only behind the last id: where nobody has added for a while, that is an age that no job has.
_SAME_ID = """
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
for _, stream in ipairs(KEYS) do
  local last = redis.call('XINFO', 'STREAM', stream)
  for i = 1, #last, 2 do
    if last[i] == 'last-generated-id' then
      ms = math.max(ms, tonumber(string.match(last[i + 1], '^%d+')))
    end
  end
end
local id = string.format('%d-7', ms + 1)
for i, stream in ipairs(KEYS) do redis.call('XADD', stream, id, 'job', ARGV[i]) end
return id
"""


_READABLE = "bad fields, readable id"


class RawAdder:
    def __init__(
        self,
        partitions: Sequence[Partition],
        client_of: Callable[[Partition], redis.Redis],
        plan: Plan,
        submitted: Journal,
    ) -> None:
        self._partitions = partitions
        self._client_of = client_of
        self.plan = plan
        self._submitted = submitted
        self._numbers = count(RAW_BASE)
        self.garbage: list[EntryKey] = []
        """Each must come out as a dead letter."""
        self.entries = 0
        """How many entries all of this has added."""
        self.failures: dict[int, str] = {}
        """Garbage with a readable id, by number: its subscriber is told this code."""

    def announce(self, number: int, job_id: str) -> None:
        """For the subscriber: follow this job."""
        self._submitted.write(number, job_id, time.time())

    def add_garbage(self, kind: float, seed: int, victim: str | None) -> str:
        """`kind` from 0 to 1; `victim`: the id of an innocent job, for a bad entry to name."""
        draw = random.Random(seed)
        number = next(self._numbers)
        job_id, partition = self._place(number)
        kinds = _garbage(draw, job_id, victim or "nobody")
        what = list(kinds)[int(kind * len(kinds))]
        stream = draw.choice(partition.all_jobs)
        entry = self._xadd(partition, stream, {} | kinds[what])
        self.garbage.append(EntryKey(stream, entry))
        if what == _READABLE:
            self.failures[number] = "invalid_parameter"
            self.announce(number, job_id)
        return what

    def add_twice(self, seed: int) -> str:
        """One job, added again as by a client whose reply was lost: sometimes elsewhere."""
        draw = random.Random(seed)
        number = next(self._numbers)
        job_id, partition = self._place(number)
        streams, raw = partition.all_jobs, self._packed(number, job_id)
        if draw.random() < 0.3:
            self._same_id(partition, draw.sample(streams, 2), [raw, raw])
        else:
            first = draw.choice(streams)
            for stream in (first, draw.choice([first, draw.choice(streams)])):
                self._xadd(partition, stream, {"job": raw})
        self.announce(number, job_id)
        return job_id

    def add_twins(self) -> str:
        """Different jobs whose entries have the same id, in all three streams."""
        numbers = [next(self._numbers) for _ in Priority]
        partition = self._partitions[numbers[0] % len(self._partitions)]
        jobs = {number: f"{partition.index}-chaos-{number}" for number in numbers}
        raws = [self._packed(*job) for job in jobs.items()]
        entry = self._same_id(partition, partition.all_jobs, raws)
        for job in jobs.items():
            self.announce(*job)
        return entry

    def _place(self, number: int) -> tuple[str, Partition]:
        count = len(self._partitions)
        return chaos_id(number, count), self._partitions[number % count]

    def _packed(self, number: int, job_id: str) -> bytes:
        job = self.plan.job(number)
        body = {"v": 1, "id": job_id, "prompt": job.prompt, "sampling": job.sampling}
        body |= {"encode": job.encode} if job.encode is not None else {}
        packed: bytes = msgpack.packb(body)
        return packed

    def _xadd(self, partition: Partition, stream: str, fields: dict[Any, Any]) -> str:
        entry: Any = self._client_of(partition).xadd(stream, fields)
        self.entries += 1
        return str(entry.decode())

    def _same_id(self, partition: Partition, streams: Sequence[str], raws: list[bytes]) -> str:
        client = self._client_of(partition)
        entry: Any = client.eval(_SAME_ID, len(streams), *streams, *raws)
        self.entries += len(streams)
        return str(entry.decode())


def _garbage(draw: random.Random, readable: str, victim: str) -> dict[str, dict[Any, Any]]:
    """The fields of an entry, by what is wrong with it."""
    job = {"v": 1, "id": f"{readable}-unread", "prompt": "x" * 100}
    packed = msgpack.packb(job)
    return {
        "random bytes": {"job": draw.randbytes(draw.randint(1, 300))},
        "truncated msgpack": {"job": packed[: draw.randint(1, 90)]},
        "not a map": {"job": msgpack.packb(draw.choice([[1, 2], 7, "job", None, 1.5]))},
        "without an id": {"job": msgpack.packb({"v": 1, "prompt": "x"})},
        "without the field": {"other": b"x"},
        "bytes after the end": {"job": packed + b"\xc0"},
        "keys of other types": {"job": msgpack.packb({1: 2, "id": 3})},
        "somebody else's id": {"job": msgpack.packb(job | {"id": victim, "prompt": 5})},
        _READABLE: {
            "job": msgpack.packb(job | {"id": readable, "sampling": {"max_new_tokens": "many"}})
        },
    }
