"""Somebody else writes where only the scripts of the protocol should: state and token logs."""

import random
from collections.abc import Callable
from typing import Any

import redis

from rose.errors import RoseError
from rose.protocol import JobSpec, Partition, TokenEvent, encode_event
from rose_producer import Client
from tests.fuzz.messages import Fuzzer

_FIELDS = ("status", "tokens", "epoch", "attempts", "taken_at", "cancel", "cost", "stream", "entry")
_NO_NUMBERS = ("", "x", "-1", "1.5", "1e9", "99999999999999999999", "a b", "0-0")
_VALUES = (*_NO_NUMBERS, "1", "0", "queued", "workers")
_PATIENCE_S = 0.05


class Poisoner:
    def __init__(self, seed: int, fuzzer: Fuzzer, raw: redis.Redis, partition: Partition) -> None:
        self._random = random.Random(seed)
        self._fuzzer = fuzzer
        self._redis = raw
        self._partition = partition
        self._ways: tuple[Callable[[JobSpec], None], ...] = (
            *(self._bad_log,) * 4,
            self._log_without_state,
            self._bad_state,
            self._other_kinds,
        )

    def poison(self, job: JobSpec) -> None:
        """Before it is enqueued."""
        self._random.choice(self._ways)(job)

    def _bad_log(self, job: JobSpec) -> None:
        """As many entries as the state says, and some of them are not what they should be."""
        logged = self._random.randrange(1, 4)
        for index in range(logged):
            event = TokenEvent(index=index, token_ids=(103,), text="")
            raw = self._random.choice((encode_event(event), self._fuzzer.event()))
            field = self._random.choice((b"event", b"event", b"events"))
            self._redis.xadd(self._partition.tokens(job.id), {field: raw}, id=f"{index + 1}-0")
        self._redis.hset(self._partition.state(job.id), "tokens", logged)

    def _log_without_state(self, job: JobSpec) -> None:
        entry = self._random.choice(("1-0", "3-1", "*"))
        fields: dict[Any, Any] = {b"event": self._fuzzer.event()}
        self._redis.xadd(self._partition.tokens(job.id), fields, id=entry)

    def _bad_state(self, job: JobSpec) -> None:
        for field in self._random.sample(_FIELDS, 2):
            # A forged cost cannot be told from an honest one: it would be subtracted from the load.
            value = self._random.choice(_NO_NUMBERS if field == "cost" else _VALUES)
            self._redis.hset(self._partition.state(job.id), field, value)

    def _other_kinds(self, job: JobSpec) -> None:
        where = self._random.choice((self._partition.state, self._partition.tokens))
        self._redis.set(where(job.id), self._fuzzer.noise(), ex=60)


def ask_for(client: Client, job_id: str) -> str | None:
    """A subscriber of a poisoned job must get answers or our own errors. Returns anything else."""
    job = client.job(job_id)
    for act in (job.status, job.cancel, lambda: job.result(_PATIENCE_S)):
        try:
            act()
        except RoseError:
            continue
        except Exception as error:  # noqa: BLE001 - the very thing that is looked for
            return f"{error!r} at a poisoned job"
    return None
