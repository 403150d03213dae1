"""All the worker's calls to Redis; those about the queue as a whole are in `queue_reader`.

Blocking reads, subscriptions and all other calls have connections of their own, so that none waits
for another.
"""

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from itertools import groupby
from typing import Literal

from redis.exceptions import AuthenticationError

from rose.protocol import MAX_JOB_BYTES, EntryKey, JobEntry, Partition, calls
from rose.protocol.calls import (
    LISTENER_MS,
    WAITING_MS,
    Announced,
    Append,
    NotTaken,
    OfOtherModel,
    Take,
    Taken,
)
from rose.protocol.vocabulary import VOCABULARY_S
from rose.transport import (
    CALL,
    CONNECTION_LOST,
    AsyncRedisClient,
    AsyncSubscriptions,
    broker_errors,
    field_of,
)
from rose_worker.engine import ModelInfo
from rose_worker.jobs import DeadLetter, Entry, Fetched
from rose_worker.queue_reader import QueueReader
from rose_worker.settings import WorkerSettings
from rose_worker.tasks import at_least_one

log = logging.getLogger(__name__)

_SCRIPTS = (
    "announce",
    "append",
    "create_groups",
    "dead_letter",
    "elect",
    "fetch",
    "forget",
    "hand_on",
    "leave",
    "oldest_waiting",
    "queue_status",
    "reclaim",
    "release",
    "renew",
    "room",
    "sweep",
    "take",
    "tenant_status",
)

#: Default limits of what may wait and run in a partition.
_MAX_QUEUED_JOBS = 100_000
_MAX_QUEUED_BYTES = 2**30

#: Log entries per read. A log may hold a million tokens.
_LOG_CHUNK = 1000

#: Events per append call; the events of one job may exceed it. A step has one event per slot, or
#: two if its job ends, so those of 256 slots fit. After an outage there may be thousands, and
#: Redis serves nobody else while a script runs.
_MAX_EVENTS = 512

#: A call without an answer within a third of a lease is given up, so that another one fits into
#: the lease. No network is slower than this minimum, however short the lease is.
_MIN_REPLY_S = 1.0

#: How long intake listens for new jobs before it looks for released ones.
LISTEN_S = 0.5

#: How long an idle worker waits for its turn to listen before it checks whether anybody listens.
#: A killed listener is replaced within this time plus the second for which its key lives.
_MAX_WAIT_S = 1.0

#: Share of an interval: a lone worker calls once an interval, and must not come a moment too
#: early.
_LOOK_AFTER = 0.8

#: Share of a lease: how long workers may renew after a time in which they could not. They renew
#: three times a lease.
_PATIENCE_PER_LEASE = 0.5


#: Of a worker that has computed no prompt yet; and which prompts tell something, and how much.
_UNKNOWN_SPEED, _MIN_PREFILL, _LATEST = 2000.0, 64, 0.2


#: By when, in ms of Redis' clock, a job of the first and one of the second priority must be due to
#: get the slot of another; then the same of jobs that pass between tenants. 0: none gets one.
DueBefore = tuple[int, int, int, int]


class Turn(Enum):
    """Why an idle worker does not wait any more."""

    NONE = auto()
    """The time is over."""
    LISTENS = auto()
    """It is this worker's turn to listen."""
    OWN = auto()
    """A job stands aside for it."""


class Broker:
    def __init__(self, settings: WorkerSettings, consumer: str) -> None:
        self.consumer = consumer
        self._ttl_s = settings.result_ttl_s
        self._limits = calls.QueueLimits(
            settings.max_queued_jobs or _MAX_QUEUED_JOBS,
            settings.max_queued_tokens,
            settings.max_queued_bytes or _MAX_QUEUED_BYTES,
        )
        self._ageing_ms = int(settings.ageing_s * 1000)
        self._dead_letters_kept = settings.dead_letters_kept
        self._dead_letters_max_bytes = settings.dead_letters_max_bytes
        self._dead_letter_ttl_s = settings.dead_letter_ttl_s
        # No call is repeated here: each loop of the worker has its own pauses and limits, and
        # must notice a silent Redis before its leases end.
        reply_s = min(settings.redis_timeout_s, max(_MIN_REPLY_S, settings.lease_s / 3))
        self._redis = AsyncRedisClient(settings, reply_timeout_s=reply_s, repeats=0)
        self.partitions = [
            Partition(settings.queue, index, self._redis.database)
            for index in range(settings.partitions)
        ]
        self._reader = AsyncRedisClient(
            settings, reply_timeout_s=reply_s + _MAX_WAIT_S, repeats=0, blocking=True
        )
        self.slots = settings.max_batch_size
        """the announced number of jobs that this worker decodes at once"""
        self.queue = QueueReader(self._redis, settings.queue, consumer, self._ttl_s)
        self._start_repeats = settings.redis_retries
        self.subscriptions = AsyncSubscriptions(settings)
        self._fingerprint = ""
        self._hands_back = settings.hand_backs > 0
        self._placement_ms = int(settings.placement_s * 1000)
        self._placing: set[Partition] = set()
        """partitions whose workers all place jobs, and are several"""
        self._has_placed: set[Partition] = set()
        self.offers_slots = True
        """for jobs that are placed: False while it drains"""
        self.prefill_speed = _UNKNOWN_SPEED
        """tokens of a prompt that the engine computes in a second"""
        self._logged: dict[Partition, bytes] = {}

    async def start(self) -> None:
        """Get at least one partition ready. The others follow when their nodes answer.

        Raises: BrokerUnavailable
        """
        failures = 0
        with broker_errors():
            while True:
                try:
                    await self._redis.load_scripts(_SCRIPTS)
                    return await at_least_one(map(self.create_groups, self.partitions))
                except AuthenticationError:
                    raise
                except CONNECTION_LOST:
                    failures += 1
                    if failures > self._start_repeats:
                        raise
                await asyncio.sleep(CALL.pause_s(failures))

    async def create_groups(self, partition: Partition) -> None:
        """Create the consumer groups, at entry 0 so that they see jobs that came before them; and
        make anew what another program has written over."""
        for key in await self._redis.run(calls.create_groups(partition)):
            log.error(
                "another program had overwritten the key %s with a value of another type: it was "
                "made anew, and what it held is lost. Jobs that waited there are gone, those that "
                "ran end with entry_lost; submit them again. Give every other program on this "
                "Redis a user of its own: docs/redis.md",
                key.decode(errors="replace"),
            )

    async def announce(
        self, partition: Partition, model: ModelInfo, mode: Literal["join", "replace", "keep"]
    ) -> Announced:
        """Announce that this worker lives and what it serves. Submit refuses what the announced
        model cannot hold.

        Raises: RedisError, MalformedMessage
        """
        self._fingerprint = model.fingerprint
        facts: dict[str, str | bytes | int] = {
            **model.announced.facts,
            "vocabulary": "",  # the script notes it where it is kept
            "ageing_ms": self._ageing_ms,
            "partitions": len(self.partitions),
            **self._limits.facts,
        }
        has_one = model.fingerprint and model.has_vocabulary
        vocabulary = partition.vocabulary(model.fingerprint) if has_one else None
        placement = None
        if self._placement_ms:
            placement = self.slots if self.offers_slots else 0
        call = calls.announce(
            partition,
            self.consumer,
            facts,
            mode=mode,
            slots=self.slots,
            vocabulary=vocabulary,
            placement=placement,
        )
        announced = calls.announced(await self._redis.run(call))
        if announced.places:
            self._placing.add(partition)
            self._has_placed.add(partition)
        else:
            self._placing.discard(partition)
        return announced

    def place_no_jobs(self) -> None:
        """This worker's engine has no prefix cache."""
        if self._placement_ms:
            log.warning(
                "jobs are not placed: the engine has no prefix cache. ROSE_PLACEMENT_S needs one "
                "at every worker of the queue"
            )
        self._placement_ms = 0

    def places(self, partition: Partition) -> bool:
        """Whether jobs of this partition may stand aside for a worker, or may have before."""
        return partition in self._has_placed

    def _placement(self, partition: Partition) -> str:
        if not self.places(partition):
            return ""
        longest_ms = self._placement_ms if partition in self._placing else 0
        return f"{longest_ms} {max(1, int(self.prefill_speed))}"

    def _hand_backs(self, due_before: DueBefore | None) -> str:
        if not self._hands_back:
            return ""
        return "-" if due_before is None else " ".join(map(str, due_before))

    def note_prefill(self, tokens: int, seconds: float) -> None:
        """So many tokens of a prompt were computed, those of other jobs beside it."""
        if tokens >= _MIN_PREFILL and seconds > 0:
            self.prefill_speed += _LATEST * (tokens / seconds - self.prefill_speed)

    async def offer_no_slots(self, partition: Partition) -> None:
        """No job waits for this worker any more, which drains."""
        self.offers_slots = False
        if self._placement_ms:
            await self._redis.execute("HSET", partition.placing, self.consumer, "0 0")

    async def store_vocabulary(self, partition: Partition, packed: bytes) -> None:
        """Store the vocabulary of the announced model, unless it is stored. A Redis at its
        memory limit refuses it.

        Raises: RedisError
        """
        key = partition.vocabulary(self._fingerprint)
        await self._redis.execute("SET", key, packed, "NX", "EX", VOCABULARY_S)

    async def close(self) -> None:
        for client in (self._redis, self._reader, self.subscriptions):
            await client.aclose()

    async def leave(self, partition: Partition) -> None:
        """Give up reading the queue's gauges, and leave the groups. Entries that this worker
        owns without knowing it, after a lost reply, are released."""
        await self.queue.elect(partition, 0)
        places = self._placement_ms > 0
        await self._redis.run(calls.leave(partition, self.consumer, places=places))

    async def fetch(
        self,
        partition: Partition,
        count: int,
        *,
        wait: bool = False,
        adopt: Iterable[EntryKey] | None = None,
        take_id: str = "",
        due_before: DueBefore | None = None,
    ) -> Fetched:
        """Read at most `count` entries without waiting: released ones first, then new ones, the
        most urgent first. `wait`: none where another worker listens. `adopt`: after a lost reply,
        all entries that this worker knows of; those that it owns beside them come first.
        `take_id`: with it new jobs that nobody has started before are taken at once. `due_before`:
        all slots are taken, and a job that is due before that may have one."""
        call = calls.fetch(
            partition,
            self.consumer,
            count,
            ageing_ms=self._ageing_ms,
            wait=wait,
            adopt=adopt,
            ttl_s=self._ttl_s,
            take_id=take_id,
            model=self._fingerprint,
            placement=self._placement(partition),
            hand_backs=self._hand_backs(due_before),
        )
        reply = await self._redis.run(call)
        streams, seen, redelivered, more, listens, mended, outcomes, due_ms = reply
        self._log_mended(partition, mended)
        entries = [
            Entry(partition, EntryKey(stream.decode(), entry_id.decode()), raw)
            for stream, flat in streams
            for entry_id, raw in zip(flat[::2], flat[1::2], strict=True)
        ]
        begun = {
            entry.key: taken
            for entry, outcome in zip(entries, outcomes, strict=True)
            if outcome and isinstance(taken := calls.taken(outcome, take_id), Taken)
        }
        due_s = due_ms / 1000 if due_ms else None
        return Fetched(entries, seen, redelivered, bool(more), bool(listens), begun, due_s)

    def _log_mended(self, partition: Partition, mended: bytes) -> None:
        """Log once that a key was overwritten and rebuilt. `mended`: when, and which; b"" for
        none."""
        if mended and self._logged.get(partition) != mended:
            self._logged[partition] = mended
            log.error(
                "another program had overwritten the key %s; it was rebuilt from the queue's other "
                "keys, and tenants' shares may be wrong for a while. Give every other program on "
                "this Redis a user of its own: docs/redis.md",
                mended.decode(errors="replace").partition(" ")[2],
            )

    async def listen(
        self, partition: Partition, seen: Sequence[bytes], longest_s: float = LISTEN_S
    ) -> list[Entry]:
        """Wait for entries after `seen`. Returns up to two of each stream.
        One of the wake-up stream, which has no job, says that a tenant's job may begin that came
        before.

        Reads without a group, so nobody owns the returned entries: none is lost if the call is
        interrupted, and the caller needs no free slot for them.
        """
        streams = (*partition.all_streams, partition.wakeup)
        reply = await self._reader.execute(
            "XREAD",
            "COUNT",
            2,
            "BLOCK",
            max(1, round(longest_s * 1000)),
            "STREAMS",
            *streams,
            *seen,
        )
        return [
            Entry(partition, EntryKey(stream.decode(), entry_id.decode()), field_of(fields, b"job"))
            for stream, entries in reply or ()
            for entry_id, fields in entries
        ]

    async def listen_for_urgent(
        self, partition: Partition, seen: Sequence[bytes], due_before: DueBefore
    ) -> None:
        """Wait until a job may have come that is due before a running one, or for LISTEN_S."""
        *places, tenants, wakeup = seen
        asked = {
            stream: place
            for stream, place, *limits in zip(
                partition.all_jobs, places, due_before[:2], due_before[2:], strict=False
            )
            if any(limits)
        }
        if tenants:
            asked |= {partition.tenant_jobs: tenants, partition.wakeup: wakeup}
        await self._reader.execute(
            *("XREAD", "COUNT", 1, "BLOCK", round(LISTEN_S * 1000), "STREAMS"),
            *asked,
            *asked.values(),
        )

    async def levels(self, partition: Partition, job_ids: Sequence[str]) -> list[int | None]:
        """Of the priorities of tenants' jobs, 1 for the highest; None where somebody else has
        written into its state."""
        looks = [("HMGET", partition.state(job_id), "share") for job_id in job_ids]
        shares = [(reply[0] or b"").split() for reply in await self._redis.exchange(looks)]
        return [
            int(words[1]) if len(words) == 3 and words[1] in (b"1", b"2", b"3") else None
            for words in shares
        ]

    async def wait_for_turn(self, partition: Partition) -> Turn:
        """Wait at most a second until it is this worker's turn to listen, or a job stands aside for
        it."""
        longest_s = random.uniform(0.5, 1) * _MAX_WAIT_S  # noqa: S311 - jitter, no secret
        own = partition.own_turn(self.consumer)
        keys = (own, partition.turn) if self.places(partition) else (partition.turn,)
        popped = await self._reader.execute("BZPOPMIN", *keys, f"{longest_s:.3f}")
        if not popped:
            return Turn.NONE
        return Turn.OWN if popped[0] == own.encode() else Turn.LISTENS

    async def somebody_listens(self, partition: Partition) -> bool:
        """Whether another worker listens and will pass the turn on, as far as two short commands
        can tell. Only a fetch is certain."""
        listener, _, waiting = partition.idle
        looks = [("PTTL", listener), ("PTTL", waiting)]
        listener_ms, waiting_ms = map(int, await self._redis.exchange(looks))
        return 0 < listener_ms <= LISTENER_MS and WAITING_MS / 2 < waiting_ms <= WAITING_MS

    async def hand_on(self, partition: Partition) -> None:
        """Let the next idle worker listen, because this one does something else."""
        await self._redis.run(calls.hand_on(partition, self.consumer, leaves=True))

    async def take_unread(
        self, partition: Partition, take: Take
    ) -> tuple[Entry | None, Taken | None, bool]:
        """Read the next entry of the stream of `take.entry`, and take it if it is that one. None if
        the stream has no unread entry. The last value: whether other idle workers wait; then the
        next of them listens now."""
        others, *read = await self._redis.run(self._take(partition, [take], "unread"))
        if not read:
            return None, None, bool(others)
        entry_id, raw, outcome = read
        taken = calls.taken(outcome, take.take_id)
        entry = Entry(partition, EntryKey(take.entry.stream, entry_id.decode()), raw)
        return entry, taken if isinstance(taken, Taken) else None, bool(others)

    async def reclaim(self, partition: Partition, *, lease_s: float, interval_s: float) -> int:
        """Give the entries of silent workers to `released`, where `fetch` finds them first. Only
        one call an interval looks for them, whichever worker makes it. Returns how many they
        were."""
        call = calls.reclaim(
            partition,
            lease_ms=int(lease_s * 1000),
            interval_ms=int(interval_s * _LOOK_AFTER * 1000),
            patience_ms=int(lease_s * _PATIENCE_PER_LEASE * 1000),
        )
        return int(await self._redis.run(call))

    async def take(
        self, partition: Partition, takes: Sequence[Take], *, alone: bool = False
    ) -> list[Taken | NotTaken | OfOtherModel]:
        """Start jobs. Returns an outcome for each, in order."""
        if not takes:
            return []
        mode: Literal["", "alone"] = "alone" if alone else ""
        reply = await self._redis.run(self._take(partition, takes, mode))
        return [calls.taken(item, take.take_id) for item, take in zip(reply, takes, strict=True)]

    def _take(
        self, partition: Partition, takes: Sequence[Take], mode: Literal["", "alone", "unread"]
    ) -> calls.Call:
        return calls.take(
            partition,
            takes,
            self.consumer,
            ttl_s=self._ttl_s,
            model=self._fingerprint,
            mode=mode,
            placement=self._placement(partition),
        )

    async def cancel_requested(self, partition: Partition, job_id: str) -> bool:
        (flag,) = await self._redis.execute("HMGET", partition.state(job_id), "cancel")
        return flag is not None

    async def read_log(self, partition: Partition, job_id: str) -> list[bytes]:
        """The logged events of a job that this worker has taken, so that nobody else appends."""
        events: list[bytes] = []
        start = "-"
        while True:
            entries = await self._redis.execute(
                "XRANGE", partition.tokens(job_id), start, "+", "COUNT", _LOG_CHUNK
            )
            events += [field_of(fields, b"event") or b"" for _, fields in entries]
            if len(entries) < _LOG_CHUNK:
                return events
            start = f"({entries[-1][0].decode()}"

    async def publish(self, partition: Partition, items: Sequence[Append]) -> list[str]:
        """Append events and end jobs in one round trip. Returns an outcome for each, in order."""
        parts = _parts(items)
        replies = await self._redis.run_many(
            [calls.append(partition, part, ttl_s=self._ttl_s) for part in parts],
        )
        return [
            outcome
            for reply, part in zip(replies, parts, strict=True)
            for outcome in calls.outcomes(reply, len(part))
        ]

    async def renew(self, entries: Iterable[EntryKey]) -> set[EntryKey]:
        """Renew the leases of these entries. Returns those that are lost."""
        ids = {
            stream: [entry.id for entry in group]
            for stream, group in groupby(sorted(entries), key=lambda entry: entry.stream)
        }
        replies = await self._redis.run_many(
            [calls.renew(stream, self.consumer, group) for stream, group in ids.items()],
        )
        return {
            EntryKey(stream, entry_id.decode())
            for stream, reply in zip(ids, replies, strict=True)
            for entry_id in reply
        }

    async def hand_back(self, lease: calls.Lease) -> None:
        """End a take, so that any worker may go on with the job."""
        stream, held = lease.entry.stream, [JobEntry(lease.entry, lease.job_id)]
        call = calls.release(lease.partition, stream, self.consumer, held, take_ids=[lease.take_id])
        await self._redis.run(call)

    async def release(self, partition: Partition, jobs: Iterable[JobEntry]) -> None:
        """Hand jobs back to the queue."""
        await self._redis.run_many(
            [
                calls.release(partition, stream, self.consumer, list(group))
                for stream, group in groupby(sorted(jobs), key=lambda job: job.entry.stream)
            ],
        )

    async def dead_letter(self, letters: Sequence[DeadLetter]) -> None:
        dead_letter_calls = [
            calls.dead_letter(
                letter.entry.partition,
                letter.entry.key,
                self.consumer,
                # Only the beginning of an oversized job is kept. The error names its size.
                raw=(letter.entry.raw or b"")[:MAX_JOB_BYTES],
                job_id=letter.job_id,
                event=letter.event,
                keep=self._dead_letters_kept,
                keep_bytes=self._dead_letters_max_bytes,
                keep_s=self._dead_letter_ttl_s,
                ttl_s=self._ttl_s,
            )
            for letter in letters
        ]
        await self._redis.run_many(dead_letter_calls)


def _parts(items: Sequence[Append]) -> list[list[Append]]:
    parts: list[list[Append]] = []
    events = _MAX_EVENTS
    for item in items:
        if events >= _MAX_EVENTS:
            parts.append([])
            events = 0
        parts[-1].append(item)
        events += len(item.events) + (item.end is not None)
    return parts
