"""How `rose status` shows a job or a queue."""

from __future__ import annotations

from rose.protocol.status import JobStatus, QueueStatus
from rose_cli.output import age, local_time


def facts_of(status: JobStatus | QueueStatus) -> dict[str, str]:
    return _job(status) if isinstance(status, JobStatus) else _queue(status)


def _queue(status: QueueStatus) -> dict[str, str]:
    began = status.oldest_running_ms
    oldest = "" if began is None else f", the oldest submitted {age(began)} ago"
    model = "no worker has come yet"
    if status.model is not None:
        model = f"{status.model}, {status.context_tokens:,} tokens of context"
    waiting = ", ".join(f"{priority} {count}" for priority, count in status.waiting.items())
    workers = [f"{name}: {_jobs(held)}" for name, held in sorted(status.workers.items())]
    return {
        "queue": status.queue,
        "model": model,
        "waiting": f"{sum(status.waiting.values()):,} ({waiting})",
        "running": f"{status.running:,}{oldest}",
        "workers": "\n".join(workers) or "none",
        "dead letters": f"{status.dead_letters:,}",
        "queued tokens": f"{status.queued_tokens:,}",
    }


def _job(status: JobStatus) -> dict[str, str]:
    facts = {
        "job": status.job_id,
        "status": status.status + (", to be cancelled" if status.cancel_requested else ""),
        "tokens": f"{status.tokens:,}",
        "worker": status.worker or "-",
        "submitted": _moment(status.enqueued_ms),
        "started": _moment(status.started_ms),
        "ended": _moment(status.ended_ms),
        "epoch": f"{status.epoch} (how often a worker began on it, or handed it back)",
        "attempts": f"{status.attempts} (since it last got further)",
    }
    return facts | ({"retry of": status.retry_of} if status.retry_of else {})


def _jobs(count: int) -> str:
    return "idle" if count == 0 else "1 job" if count == 1 else f"{count} jobs"


def _moment(at_ms: int | None) -> str:
    if at_ms is None:
        return "-"
    return f"{local_time(at_ms)} ({age(at_ms)} ago)"
