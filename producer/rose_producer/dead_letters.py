"""Jobs that could not run, kept with their reason: list them, retry them, delete them.

    with DeadLetters(client.settings) as letters:
        for letter in letters.list(code="crash_loop", limit=10):
            print(letter.handle, letter.message)
            job = client.job(letters.retry(letter.handle).new_id)

A letter's handle is `<partition>:<entry id>`. Prompts are in `letter.job` and nowhere else.
"""

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rose import transport
from rose.errors import DeadLetterNotFound, InvalidParameter, MalformedMessage, RoseError
from rose.protocol import JobSpec, Partition, Priority, calls, decode_job, encode_job, new_job_id
from rose.protocol.calls import now_ms
from rose_producer.partitions import AllPartitions

_HANDLE = re.compile(r"(\d{1,4}):(\d{1,20})-(\d{1,20})", re.ASCII)

#: Letters per read. One may be a megabyte.
_CHUNK = 32


@dataclass(frozen=True, slots=True)
class DeadLetter:
    handle: str
    at_ms: int
    """when it was given up, Unix milliseconds"""
    job_id: str | None
    """None where the job's id could not be read"""
    code: str
    message: str
    stream: str
    """the job stream it came from"""
    entry: str
    """its entry there"""
    job: bytes
    """the job as it came; of one over the size limit, its beginning"""
    tenant: str = ""
    """on whose account it ran; "" for nobody's"""
    level: int = 2
    """of its priority, where it has a tenant: 1 for high, 3 for low"""

    def decode(self) -> JobSpec:
        """Raises: MalformedMessage, InvalidParameter, JobTooLarge: it cannot be read."""
        return decode_job(self.job)


@dataclass(frozen=True, slots=True)
class Retried:
    """What was job `job_id` is enqueued again as job `new_id`."""

    handle: str
    job_id: str
    new_id: str


class DeadLetters(AllPartitions):
    """The dead letters of a queue, over all its partitions."""

    def list(self, *, code: str | None = None, limit: int | None = None) -> Iterator[DeadLetter]:
        """Newest first, as they are read. Raises: BrokerUnavailable"""
        merged = heapq.merge(
            *(self._newest_first(partition) for partition in self._partitions),
            key=lambda letter: _place(letter.handle),
            reverse=True,
        )
        return islice((x for x in merged if code is None or x.code == code), limit)

    def get(self, handle: str) -> DeadLetter:
        """Raises: InvalidParameter (no handle), DeadLetterNotFound, BrokerUnavailable"""
        partition, entry = self._find(handle)
        with transport.broker_errors():
            found = self._redis.execute("XRANGE", partition.dead, entry, entry)
        if not found:
            raise _gone(handle)
        return _letter(partition, *found[0])

    def retry(self, handle: str) -> Retried:
        """Enqueue the job again, where and as it was, as a new job; the letter is gone then.

        The old id has had its terminal event, and an id has only one. A passed deadline is
        dropped, because whoever retries still wants the answer.

        Raises:
            MalformedMessage, InvalidParameter, JobTooLarge: the job cannot be read; it stays.
            DeadLetterNotFound, BrokerUnavailable
        """
        letter = self.get(handle)
        partition, entry = self._find(handle)
        if letter.stream not in partition.all_streams:
            raise MalformedMessage(f"dead letter {handle} is of no job stream of this queue")
        try:
            old = letter.decode()
        except RoseError as error:
            raise type(error)(f"dead letter {handle} cannot run again, it stays: {error}") from None
        job, stream = _as_new(old, partition), letter.stream
        if letter.tenant:
            stream = partition.jobs(list(Priority)[letter.level - 1])
        call = calls.retry(
            partition,
            entry,
            stream,
            job,
            encode_job(job),
            retry_of=old.id,
            tenant=letter.tenant,
            level=letter.level,
        )
        with transport.broker_errors():
            outcome = self._redis.run(call)
        if outcome != b"RETRIED":
            raise _gone(handle)
        return Retried(handle, old.id, job.id)

    def purge(self, handles: Iterable[str]) -> int:
        """Delete these; returns how many there were. Raises: InvalidParameter, BrokerUnavailable"""
        entries: dict[str, list[str]] = {}
        for partition, entry in [self._find(handle) for handle in handles]:
            entries.setdefault(partition.dead, []).append(entry)
        with transport.broker_errors():
            return sum(
                int(self._redis.execute("XDEL", dead, *some)) for dead, some in entries.items()
            )

    def purge_all(self, *, code: str | None = None, older_than_s: float = 0) -> int:
        """Delete what is of that code and that old; returns how many. Raises: BrokerUnavailable"""
        before_ms = now_ms() - int(older_than_s * 1000)
        if code is not None:
            kind = self.list(code=code)
            return self.purge(x.handle for x in kind if x.at_ms < before_ms or not older_than_s)
        limit = ("MINID", before_ms) if older_than_s else ("MAXLEN", 0)
        with transport.broker_errors():
            return sum(
                int(self._redis.execute("XTRIM", partition.dead, *limit))
                for partition in self._partitions
            )

    def _find(self, handle: str) -> tuple[Partition, str]:
        match = _HANDLE.fullmatch(handle)
        if match is None or max(int(match[2]), int(match[3])) >= 2**64:
            raise InvalidParameter(
                f"{handle!r} is no dead letter's handle: list them, they are like 0:1700000000000-0"
            )
        index = int(match[1])
        if index >= len(self._partitions):
            raise InvalidParameter(
                f"{handle}: the queue has {len(self._partitions)} partitions (ROSE_PARTITIONS)"
            )
        return self._partitions[index], handle.partition(":")[2]

    def _newest_first(self, partition: Partition) -> Iterator[DeadLetter]:
        end = "+"
        while True:
            with transport.broker_errors():
                found = self._redis.execute("XREVRANGE", partition.dead, end, "-", "COUNT", _CHUNK)
            for entry, fields in found:
                yield _letter(partition, entry, fields)
            if len(found) < _CHUNK:
                return
            end = f"({found[-1][0].decode()}"


def _as_new(job: JobSpec, partition: Partition) -> JobSpec:
    """With an id of its own, and without a deadline that has passed."""
    passed = job.deadline_ms is not None and job.deadline_ms <= now_ms()
    deadline_ms = None if passed else job.deadline_ms
    return job.model_copy(update={"id": new_job_id(partition.index), "deadline_ms": deadline_ms})


def _letter(partition: Partition, entry: bytes, fields: Any) -> DeadLetter:
    def text(name: bytes) -> str:
        return (transport.field_of(fields, name) or b"").decode(errors="replace")

    return DeadLetter(
        handle=f"{partition.index}:{entry.decode()}",
        at_ms=int(entry.partition(b"-")[0]),
        job_id=text(b"id") or None,
        code=text(b"code"),
        message=text(b"message"),
        stream=text(b"stream"),
        entry=text(b"entry"),
        job=transport.field_of(fields, b"job") or b"",
        tenant=text(b"tenant"),
        level=int(text(b"level")) if text(b"level") in ("1", "3") else 2,
    )


def _place(handle: str) -> tuple[int, int]:
    """When it was given up: milliseconds, and a number among those of the same one."""
    ms, _, number = handle.partition(":")[2].partition("-")
    return int(ms), int(number)


def _gone(handle: str) -> DeadLetterNotFound:
    return DeadLetterNotFound(f"no dead letter {handle}: retried, purged or trimmed before")
