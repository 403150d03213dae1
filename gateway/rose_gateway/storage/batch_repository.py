"""Batches as Redis has them: created, claimed by runners, counted, ended."""

import asyncio
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rose import transport
from rose.errors import BatchNotFound, QuotaExceeded
from rose.protocol.calls import Arg, Call
from rose.protocol.keys import BulkKeys
from rose_gateway import clock
from rose_gateway.storage import batch_calls
from rose_gateway.storage.batch_calls import Lease as Lease

Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
ENDED: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})

_ID = re.compile(r"batch_[0-9a-f]{32}")
_TIMES = (
    *("in_progress_at", "finalizing_at", "completed_at", "failed_at"),
    *("expired_at", "cancelling_at", "cancelled_at"),
)
#: Batches that are looked up in one round trip.
_PAGE_SIZE = 100


class LeaseLost(Exception):
    """Another runner has the batch, or nobody any more: leave it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a batch cannot be run."""

    code: str
    message: str
    line: int | None = None
    """of the input file, from 1"""
    param: str | None = None


@dataclass(frozen=True, slots=True)
class BatchParameters:
    """What a batch was created with. Times are Unix seconds by Redis' clock."""

    owner: str
    """the id of an API key; "" where the gateway is open to all"""
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    output_expires_s: int | None = None
    """how long its output and error files are kept; None: until they are deleted"""


@dataclass(frozen=True, slots=True)
class Batch:
    id: str
    parameters: BatchParameters
    status: Status
    completed: int
    """lines in the output file"""
    failed: int
    """lines in the error file"""
    total: int | None = None
    """None: nobody has counted them yet"""
    times: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    files_at: int | None = None
    """when its files were begun; their ids stand from then on"""
    lapses: int = 0
    """runners that have gone without a word"""
    line_failures: Mapping[int, int] = field(default_factory=dict)
    """how many of them were preparing a line then, by its number"""
    outcome: Status | None = None
    """what it will have ended as, where that is known before and it is not cancelled"""

    @property
    def ended(self) -> bool:
        return self.status in ENDED


@dataclass(frozen=True, slots=True)
class LineCounts:
    status: Status
    completed: int
    """lines that were counted for the first time"""
    failed: int


def new_batch_id(created_ms: int) -> str:
    """Ids sort by time, and nobody can guess one."""
    return f"batch_{created_ms:012x}{secrets.token_hex(10)}"


class BatchRepository:
    """Belongs to one event loop. Every method raises BrokerUnavailable."""

    def __init__(self, redis: transport.AsyncRedisClient, *, keep_s: int) -> None:
        """`keep_s`: how long a batch is known after its end."""
        self._redis = redis
        self._keep_s = keep_s
        self.news = asyncio.Event()
        """a batch was created here"""

    async def now_ms(self) -> int:
        """By Redis' clock, which is that of all times here. Unix milliseconds."""
        return await clock.now_ms(self._redis)

    async def create(
        self,
        parameters: BatchParameters,
        max_unfinished: int | None = None,
        *,
        owes_event: bool = False,
    ) -> Batch:
        """`owes_event`: webhooks are told of its end.

        Raises: RedisFull, QuotaExceeded: its owner has as many as that.
        """
        batch_id = new_batch_id(await self.now_ms())
        lives_s = parameters.expires_at - parameters.created_at + self._keep_s
        oldest = f"batch_{max(0, (parameters.created_at - 2 * lives_s) * 1000):012x}"
        fields = _fields(parameters) | {"status": "validating"}
        call = batch_calls.create(
            batch_id,
            parameters.owner,
            fields,
            ttl_s=2 * lives_s,
            oldest_id=oldest,
            max_unfinished=max_unfinished or 0,
            owes_event=owes_event,
        )
        if await self._run(call) is None:
            raise QuotaExceeded(
                f"this API key may have {max_unfinished} unfinished batches, and has as many: wait "
                "for the end of one, or cancel one"
            )
        self.news.set()
        return Batch(batch_id, parameters, "validating", 0, 0)

    async def get(self, owner: str, batch_id: str) -> Batch:
        """Raises: BatchNotFound: no such batch, or another's."""
        if _ID.fullmatch(batch_id):
            batch = await self.find(batch_id)
            if batch is not None and batch.parameters.owner == owner:
                return batch
        raise BatchNotFound(
            f"there is no batch {batch_id[:128]!r}: it was never created, or ended long ago"
        )

    async def find(self, batch_id: str) -> Batch | None:
        """Whoever owns it."""
        (reply,) = await self._run(batch_calls.read(batch_id))
        return _batch(batch_id, reply)

    async def list(
        self, owner: str, *, after: str | None = None, limit: int
    ) -> tuple[Sequence[Batch], bool]:
        """The newest first, and whether there are more. `after`: those older than this one."""
        found: list[Batch] = []
        edge = f"({after}" if after else "+"
        while len(found) <= limit:
            bounds = (BulkKeys.batches(owner), edge, "-", "LIMIT", 0, _PAGE_SIZE)
            with transport.broker_errors():
                raw_ids = await self._redis.execute("ZREVRANGEBYLEX", *bounds)
            ids = [raw.decode() for raw in raw_ids]
            if not ids:
                break
            edge = f"({ids[-1]}"
            pairs = zip(ids, await self._run(batch_calls.read(*ids)), strict=True)
            found += [batch for id_, reply in pairs if (batch := _batch(id_, reply))]
        return found[:limit], len(found) > limit

    async def cancel(self, owner: str, batch_id: str) -> Batch:
        """Ask for its end, if it has not come to it by itself.

        Raises: BatchNotFound
        """
        await self.get(owner, batch_id)
        await self._run(batch_calls.cancel(batch_id))
        return await self.get(owner, batch_id)

    async def unfinished(self) -> int:
        """Batches of all owners."""
        with transport.broker_errors():
            return int(await self._redis.execute("ZCARD", BulkKeys.UNFINISHED))

    async def claim(self, runner: str, *, lease_s: float, limit: int) -> Sequence[Lease]:
        """Batches that nobody else runs now. `runner`: one that no other claim names."""
        reply = await self._run(batch_calls.claim(runner, lease_s=lease_s, limit=limit))
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return [Lease(batch_id.decode(), int(epoch), runner) for batch_id, epoch in pairs]

    async def renew(self, lease: Lease, *, lease_s: float) -> Status:
        """Returns its status. Raises: LeaseLost"""
        reply = await self._owned(batch_calls.renew(lease, lease_s=lease_s))
        status: Status = reply.decode()
        return status

    async def release(self, lease: Lease, *, pause_s: float = 0.0, failure: bool = False) -> int:
        """Leave it to any runner after a pause. Returns how often runners have failed with it.

        Raises: LeaseLost
        """
        return int(await self._owned(batch_calls.release(lease, pause_s=pause_s, failure=failure)))

    async def prepare(self, lease: Lease, line: int | None) -> None:
        """Note which line is prepared now, None for none. Raises: LeaseLost"""
        await self._owned(batch_calls.prepare(lease, line))

    async def count_lines(
        self, lease: Lease, successes: Sequence[int], failures: Sequence[int]
    ) -> LineCounts:
        """Count lines that have ended. Raises: LeaseLost"""
        status, completed, failed = await self._owned(
            batch_calls.count_lines(lease, successes, failures)
        )
        return LineCounts(status.decode(), int(completed), int(failed))

    async def ended_lines(self, batch_id: str) -> bytes:
        """Bitmap of the lines that have ended, that of line 1 first."""
        with transport.broker_errors():
            raw: bytes | None = await self._redis.execute("GET", BulkKeys.ended(batch_id))
        return raw or b""

    async def register(self, lease: Lease, checkpoint: bytes, *, until_ms: int) -> None:
        """Raises: LeaseLost"""
        await self._owned(batch_calls.register(lease, checkpoint, until_ms=until_ms))

    async def checkpoint(self, batch_id: str) -> bytes | None:
        """The one that was registered last."""
        with transport.broker_errors():
            raw: bytes | None = await self._redis.execute("GET", BulkKeys.checkpoint(batch_id))
        return raw

    async def settle(self, lease: Lease, outcome: Status, problems: Sequence[Problem] = ()) -> None:
        """How it will end, unless that is settled or it is cancelled. Raises: LeaseLost"""
        listed = [[p.code, p.message, p.line, p.param] for p in problems]
        fields: dict[str, Arg] = {"outcome": outcome, "problems": json.dumps(listed)}
        await self._owned(batch_calls.advance(lease, "", "", fields))

    async def advance(self, lease: Lease, before: Status, after: Status, **fields: Arg) -> Status:
        """Set fields that have no value yet, and the status unless it was cancelled. Returns its
        status. Raises: LeaseLost"""
        reply = await self._owned(batch_calls.advance(lease, before, after, fields))
        status: Status = reply.decode()
        return status

    async def finish(self, lease: Lease, status: Status) -> None:
        """Raises: LeaseLost"""
        await self._owned(batch_calls.finish(lease, status, ttl_s=self._keep_s))

    async def _run(self, call: Call) -> Any:
        with transport.broker_errors():
            return await self._redis.run(call)

    async def _owned(self, call: Call) -> Any:
        reply = await self._run(call)
        if reply is None:
            raise LeaseLost
        return reply


def _fields(parameters: BatchParameters) -> dict[str, Arg]:
    return {
        "owner": parameters.owner,
        "endpoint": parameters.endpoint,
        "input_file_id": parameters.input_file_id,
        "completion_window": parameters.completion_window,
        "created_at": parameters.created_at,
        "expires_at": parameters.expires_at,
        "metadata": json.dumps(dict(parameters.metadata)),
        "output_expires_s": ""
        if parameters.output_expires_s is None
        else parameters.output_expires_s,
    }


def _batch(batch_id: str, reply: Any) -> Batch | None:
    """None: there is none, or it is not what we write."""
    try:
        flat, ended, failed = reply
        fields = {name.decode(): value.decode() for name, value in _pairs(flat)}
        parameters = BatchParameters(
            fields["owner"],
            fields["endpoint"],
            fields["input_file_id"],
            fields["completion_window"],
            int(fields["created_at"]),
            int(fields["expires_at"]),
            json.loads(fields["metadata"]),
            _number(fields, "output_expires_s"),
        )
        return Batch(
            batch_id,
            parameters,
            fields["status"],  # type: ignore[arg-type]
            int(fields.get("completed", ended - failed)),
            int(fields.get("failed", failed)),
            _number(fields, "total"),
            {name: int(fields[name]) for name in _TIMES if name in fields},
            tuple(Problem(*problem) for problem in json.loads(fields.get("problems", "[]"))),
            fields.get("output_file_id") or None,
            fields.get("error_file_id") or None,
            _number(fields, "files_at"),
            _number(fields, "lapses") or 0,
            {int(n[5:]): int(v) for n, v in fields.items() if n.startswith("line:")},
            fields.get("outcome"),  # type: ignore[arg-type]
        )
    except (KeyError, ValueError, TypeError):
        return None


def _number(fields: Mapping[str, str], name: str) -> int | None:
    return int(fields[name]) if fields.get(name) else None


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Of HGETALL's reply."""
    return zip(flat[::2], flat[1::2], strict=True)
