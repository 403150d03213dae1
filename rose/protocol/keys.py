"""The names of keys and channels in Redis.

All keys of a partition share the hash tag `{queue:index}`, so every script touches one slot of a
cluster.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from rose.errors import ConfigurationError
from rose.protocol.jobs import Priority

#: The one consumer group of every job stream.
GROUP = "workers"

#: The consumer that owns jobs which a worker has handed back. Any worker may take them over.
RELEASED = "released"

#: The consumer that owns jobs which were passed over for the worker that has the beginning of their
#: prompts, as in common_placement.lua.
ASIDE = "aside"

#: Hash: how many partitions each queue has that workers have joined, by its name.
QUEUES = "rose:queues"

#: Of a queue, a tenant, a user of Redis, a model's fingerprint.
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_PARTITION_PREFIX = re.compile(r"(\d{1,4})-")


class EntryKey(NamedTuple):
    """Identifies an entry of a job stream. Entry ids are unique within a stream only."""

    stream: str
    id: str

    @property
    def enqueued_ms(self) -> int:
        return int(self.id.partition("-")[0])


class JobEntry(NamedTuple):
    """An entry of a job stream, and the job that it holds."""

    entry: EntryKey
    job_id: str


@dataclass(frozen=True, slots=True)
class Partition:
    """The keys of partition `index` of `queue`, and its channels. Those are the whole server's, so
    their names have the number of the `database` in them."""

    queue: str
    index: int = 0
    database: int = 0

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.queue):
            raise ConfigurationError(
                f"queue name {self.queue!r}: use 1 to 64 letters, digits, '_', '.' or '-'"
            )

    def _key(self, suffix: str) -> str:
        return f"rose:{{{self.queue}:{self.index}}}:{suffix}"

    def jobs(self, priority: Priority) -> str:
        return self._key(f"jobs:{priority.value}")

    @property
    def all_jobs(self) -> tuple[str, ...]:
        """The job streams, most urgent first."""
        return _job_streams(self)

    @property
    def tenant_jobs(self) -> str:
        """The stream of tenants' jobs. Those that wait for their turn are in no pending list."""
        return self._key("jobs:tenants")

    @property
    def all_streams(self) -> tuple[str, ...]:
        """The job streams and that of the tenants."""
        return (*self.all_jobs, self.tenant_jobs)

    def state(self, job_id: str) -> str:
        return self._key(f"state:{job_id}")

    def tokens(self, job_id: str) -> str:
        return self._key(f"tokens:{job_id}")

    def channel(self, job_id: str) -> str:
        return self._key(f"channel:{self.database}:{job_id}")

    def idempotency(self, key: str, producer: str = "") -> str:
        """`producer`: the user of Redis whose key it is, so that no other user can guess it; "" and
        Redis' own `default` have no name of their own."""
        # The caller's key may have any length and hold any character, so it is hashed.
        name = _digest(key)
        if producer not in ("", "default"):
            own = producer if NAME.fullmatch(producer) else _digest(producer)
            name = f"{own}:{name}"
        return self._key(f"idempotency:{name}")

    @property
    def dead(self) -> str:
        return self._key("dead")

    @property
    def control(self) -> str:
        return self._key(f"control:{self.database}")

    @property
    def reader(self) -> str:
        """String: the worker that reads the queue's gauges for all. It expires."""
        return self._key("reader")

    @property
    def running(self) -> str:
        """Sorted set: the ids of jobs that workers have started, by when the sweep saw them."""
        return self._key("running")

    @property
    def idle(self) -> tuple[str, str, str]:
        """The listener (string), whose turn it is next (sorted set), and whether others wait for
        that (string). The turn stays until it is taken, the others expire."""
        return self._key("idle:listener"), self.turn, self.waiting

    @property
    def turn(self) -> str:
        return self._key("idle:turn")

    @property
    def waiting(self) -> str:
        return self._key("idle:waiting")

    @property
    def wakeup(self) -> str:
        """Stream of at most one entry, added when a tenant's waiting job may start."""
        return self._key("idle:wakeup")

    @property
    def tenant_limits(self) -> str:
        """Hash: the weight and the limits of each tenant that has some, by its name."""
        return self._key("tenants:limits")

    @property
    def tenants(self) -> str:
        """Hash: what each tenant uses, by its name."""
        return self._key("shares:tenants")

    @property
    def tenant_deadlines(self) -> str:
        """Sorted set: the ids of parked jobs, by their deadline."""
        return self._key("shares:deadlines")

    def parked(self, tenant: str) -> str:
        """Sorted set: the ids of a tenant's jobs that wait."""
        return self._key(f"shares:parked:{tenant}")

    @property
    def reclaim(self) -> str:
        """String: when somebody last looked for lapsed leases."""
        return self._key("reclaim")

    @property
    def load(self) -> str:
        """Hash: `tokens` and `bytes` of all jobs that have not ended; `cancelled` and
        `cancelled_bytes` of the entries whose jobs were cancelled while they waited; `generated`:
        all tokens that were ever logged."""
        return self._key("load")

    @property
    def model(self) -> str:
        """Hash: what the workers serve (the fields of an AnnouncedModel, and `vocabulary`), and the
        queue's limits (max_jobs, max_tokens, max_bytes)."""
        return self._key("model")

    @property
    def workers(self) -> str:
        """Hash: how many slots each worker has, by its name. One that leaves takes its own out."""
        return self._key("workers")

    @property
    def placing(self) -> str:
        """Hash: slots of each worker with placement, and when it was seen, by its name."""
        return self._key("placement:workers")

    def own_turn(self, worker: str) -> str:
        """Sorted set: not empty where something stands aside for this worker."""
        return self._key(f"placement:turn:{worker}")

    def vocabulary(self, fingerprint: str) -> str:
        """String: the bytes of each token of the model with this fingerprint."""
        known = NAME.fullmatch(fingerprint)
        return self._key(f"vocabulary:{fingerprint if known else _digest(fingerprint)}")


class BulkKeys:
    """The keys of files, batches and webhooks. They share the hash tag `{bulk}`, so one script may
    change a file and a batch together, or a batch and what it owes."""

    _PREFIX = "rose:gateway:{bulk}:"

    #: Sorted set: the ids of files that expire, by when (Unix seconds).
    EXPIRING = _PREFIX + "expiring"
    #: Sorted set: paths in the storage that no file has, by when they may be deleted (Unix ms).
    GARBAGE = _PREFIX + "garbage"

    @classmethod
    def file(cls, file_id: str) -> str:
        """Hash: what is known of a file."""
        return f"{cls._PREFIX}file:{file_id}"

    @classmethod
    def files(cls, owner: str, purpose: str = "") -> str:
        """Sorted set: the ids of an owner's files, all or those of one purpose. All scores are 0,
        because the ids sort by time."""
        return f"{cls._PREFIX}files:{owner}:{purpose}"

    #: Sorted set: the ids of batches that have not ended, by when the lease of their runner ends
    #: (Unix ms).
    UNFINISHED = _PREFIX + "unfinished"

    @classmethod
    def stored(cls, owner: str) -> str:
        """Hash: how many files an owner has, and their bytes."""
        return f"{cls._PREFIX}stored:{owner}"

    @classmethod
    def unfinished_of(cls, owner: str) -> str:
        """Set: the ids of an owner's unfinished batches, and some that have ended. It is kept for
        owners with a limit."""
        return f"{cls._PREFIX}unfinished:{owner}"

    @classmethod
    def batch(cls, batch_id: str) -> str:
        """Hash: what is known of a batch."""
        return f"{cls._PREFIX}batch:{batch_id}"

    @classmethod
    def batches(cls, owner: str) -> str:
        """Sorted set: the ids of an owner's batches, as `files` has those of files."""
        return f"{cls._PREFIX}batches:{owner}"

    @classmethod
    def ended(cls, batch_id: str) -> str:
        """Bitmap: the lines of a batch that have ended, that of line 1 first."""
        return f"{cls._PREFIX}ended:{batch_id}"

    @classmethod
    def failed(cls, batch_id: str) -> str:
        """Bitmap: those of them that have failed."""
        return f"{cls._PREFIX}failed:{batch_id}"

    @classmethod
    def checkpoint(cls, batch_id: str) -> str:
        """String: how far the answers of a batch are stored."""
        return f"{cls._PREFIX}checkpoint:{batch_id}"

    #: Hash: JSON of each webhook endpoint, with its secrets, by its id.
    WEBHOOKS = _PREFIX + "webhooks"

    #: Sorted set: `MS ID OWNER` of batches that owe an event, MS being when they were noted, by
    #: when to look at them next (Unix ms).
    WEBHOOK_BATCHES = _PREFIX + "webhook_batches"

    @classmethod
    def webhook_jobs(cls, queue: str) -> str:
        """Sorted set: the same for jobs of a queue."""
        return f"{cls._PREFIX}webhook_jobs:{queue}"

    @classmethod
    def webhook_due(cls, endpoint: str) -> str:
        """Sorted set: ids of events that are to be delivered, by when, or by when the lease of
        whoever delivers one ends (Unix ms)."""
        return f"{cls._PREFIX}webhook_due:{endpoint}"

    @classmethod
    def webhook_events(cls, endpoint: str) -> str:
        """Hash: the body of each event that was not delivered, by its id."""
        return f"{cls._PREFIX}webhook_events:{endpoint}"

    @classmethod
    def webhook_failures(cls, endpoint: str) -> str:
        """Hash: JSON of how often and why an event could not be delivered, by its id."""
        return f"{cls._PREFIX}webhook_failures:{endpoint}"

    @classmethod
    def webhook_dead(cls, endpoint: str) -> str:
        """Sorted set: ids of events that were given up, by when (Unix ms)."""
        return f"{cls._PREFIX}webhook_dead:{endpoint}"


def conversation_key(first_id: str) -> str:
    """Hash: turns of a conversation, named by the job of its first response."""
    return f"rose:gateway:conversation:{{{first_id}}}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=1024)
def _job_streams(partition: Partition) -> tuple[str, ...]:
    return tuple(partition.jobs(priority) for priority in Priority)


def partition_of(job_id: str) -> int:
    """The partition a job id names: `P-...` is of partition P, any other id of partition 0."""
    match = _PARTITION_PREFIX.match(job_id)
    return int(match.group(1)) if match else 0
