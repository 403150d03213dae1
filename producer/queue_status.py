"""Reading the state of a whole queue: the commands, and what their replies mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from producer.results import QueueStatus
from protocol import GROUP, Partition, Priority


def ask(pipeline: Any, partitions: Sequence[Partition]) -> None:
    """Queue the commands; run the pipeline with `raise_on_error=False`: a queue that no worker
    has served yet has no consumer groups."""
    for partition in partitions:
        for stream in partition.all_jobs:
            pipeline.xlen(stream)
            pipeline.xpending(stream, GROUP)
        pipeline.xlen(partition.dead)
        pipeline.hget(partition.load, "tokens")
        pipeline.hmget(partition.model, "name", "context_tokens")


def read(replies: Sequence[Any], queue: str) -> QueueStatus:
    """Raises: RedisError: among the replies, other than for a missing group."""
    waiting = {priority.value: 0 for priority in Priority}
    workers: Counter[str] = Counter()
    dead = tokens = 0
    model: tuple[str, int] | None = None
    answers = iter(replies)
    for length in answers:
        for position, priority in enumerate(Priority):
            entries = _checked(length if position == 0 else next(answers))
            held = _held(next(answers))
            workers.update(held)
            waiting[priority.value] += entries - held.total()
        dead += _checked(next(answers))
        tokens += int(_checked(next(answers)) or 0)
        name, context = _checked(next(answers))
        model = (name.decode(), int(context)) if name is not None else model
    return QueueStatus(
        queue=queue,
        waiting=waiting,
        running=workers.total(),
        dead_letters=dead,
        queued_tokens=tokens,
        model=model and model[0],
        context_tokens=model and model[1],
        workers=dict(workers),
    )


def _held(reply: Any) -> Counter[str]:
    """Pending entries by consumer."""
    if isinstance(reply, ResponseError) and str(reply).startswith("NOGROUP"):
        return Counter()
    return Counter({c["name"].decode(): c["pending"] for c in _checked(reply)["consumers"]})


def _checked(reply: Any) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply
