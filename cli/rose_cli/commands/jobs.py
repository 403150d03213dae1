"""`rose submit`, `stream`, `result`, `status` and `cancel`."""

from dataclasses import asdict, replace
from typing import Annotated, Any, cast

import typer

from rose.errors import InvalidParameter
from rose.protocol import CancelledEvent, FinishedEvent, error_of
from rose.protocol.status import JobStatus, QueueStatus
from rose.protocol.tenants import TenantsStatus
from rose_cli.options import AsJson, Priority, Queue, RedisUrl, given, settings_of
from rose_cli.output import (
    age,
    local_time,
    print_json,
    print_result,
    print_text,
    printable,
    read_stdin,
    seconds_since,
)
from rose_cli.queue_troubles import nobody_serves, other_partitions, served_queues
from rose_cli.sampling import with_sampling_options
from rose_producer import Client, FailedEvent, Job, Request, TokenEvent
from rose_producer.request import PriorityLike

#: So many are named in the queue's status.
_TENANTS = 10

JobId = Annotated[str, typer.Argument(help="The job's id, as `rose submit` prints it.")]


@with_sampling_options
def submit(
    prompts: Annotated[list[str], typer.Argument(help="Prompts, a job each; - reads stdin.")],
    stream: Annotated[bool, typer.Option(help="Wait, and print the text as it comes.")] = False,
    chat: Annotated[bool, typer.Option(help="Send each prompt as a user's chat message.")] = False,
    logprobs: Annotated[
        bool | None, typer.Option("--logprobs", help="With --json: log-probabilities of tokens.")
    ] = None,
    top_logprobs: Annotated[
        int | None, typer.Option(help="And of so many of the likeliest ones.")
    ] = None,
    priority: Priority = "normal",
    deadline: Annotated[
        float | None, typer.Option(help="Seconds after which nobody wants it.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key again gives the same job.")
    ] = None,
    adapter: Annotated[
        str | None, typer.Option(help="The LoRA adapter that answers, of those the workers serve.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Whose share of the queue it takes. [env: ROSE_TENANT]")
    ] = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
    *,
    sampling: dict[str, Any],
) -> None:
    """Enqueue prompts and print their job ids."""
    sampling |= given(logprobs=logprobs, top_logprobs=top_logprobs)
    texts = [read_stdin() if prompt == "-" else prompt for prompt in prompts]
    requests = [
        Request(
            [{"role": "user", "content": text}] if chat else text,
            priority=cast(PriorityLike, priority),  # a wrong one is refused with the rest
            deadline_s=deadline,
            idempotency_key=idempotency_key,
            sampling=sampling,
            adapter=adapter,
            tenant=tenant,
        )
        for text in texts
    ]
    with Client(settings_of(redis_url, queue)) as client:
        for job in client.submit_many(requests):
            print_result({"id": job.id}, job.id, as_json=as_json)
            if stream:
                _print_stream(job, 0, as_json)


def stream(
    job_id: JobId,
    cursor: Annotated[int, typer.Option(help="Tokens you have already.")] = 0,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Print a job's text from the beginning, or from a cursor, as it comes."""
    with Client(settings_of(redis_url, queue)) as client:
        _print_stream(client.job(job_id), cursor, as_json)


def _print_stream(job: Job, cursor: int, as_json: bool) -> None:
    for event in job.stream(cursor):
        if as_json:
            print_json(event.as_json() | {"cursor": event.cursor})
        elif isinstance(event, TokenEvent):
            print_text(event.text, end="")
        elif isinstance(event, FinishedEvent):
            print_text("")
        if isinstance(event, FailedEvent | CancelledEvent):
            raise error_of(event, job.id)


def result(
    job_id: JobId,
    timeout: Annotated[float | None, typer.Option(help="Seconds to wait.")] = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Wait for a job to end, and print its text, or a line of numbers for each input."""
    with Client(settings_of(redis_url, queue)) as client:
        answer = client.job(job_id).result(timeout)
    rows = None
    if answer.numbers is not None:
        rows = [row.tolist() for row in answer.numbers.rows()]
    text = answer.text if rows is None else "\n".join(map(str, rows))
    print_result(asdict(replace(answer, numbers=None)) | {"numbers": rows}, text, as_json=as_json)


def status(
    job_id: Annotated[str | None, typer.Argument(help="A job; the queue if left out.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every queue on this Redis, and its model.")
    ] = False,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Show how a job stands, or the queue, or all queues with their models."""
    if every:
        _all_queues(job_id, redis_url, queue, as_json)
        return
    settings = settings_of(redis_url, queue)
    with Client(settings) as client:
        if job_id is not None:
            _show(client.job(job_id).status(), {}, {}, as_json)
            return
        status, tenants = client.queue_status(), client.tenants(_TENANTS)
        troubles = [other_partitions(status, settings.partitions)]
        if not status.workers:
            troubles.append(nobody_serves(status.queue, served_queues(client)))
    said = "\n".join(trouble for trouble in troubles if trouble)
    more = {"tenants": [asdict(one) for one in tenants.top]}
    _show(status, more, _tenants(tenants) | ({"trouble": said} if said else {}), as_json)


def _show(
    status: JobStatus | QueueStatus, more: dict[str, Any], shown: dict[str, str], as_json: bool
) -> None:
    """With more facts for a program, or for a person."""
    if as_json:
        print_json(asdict(status) | _ages(status) | more)
        return
    from rose_cli.tables import facts_table, print_drawing

    print_drawing(facts_table(facts_of(status) | shown))


def _all_queues(
    job_id: str | None, redis_url: str | None, queue: str | None, as_json: bool
) -> None:
    if job_id is not None or queue is not None:
        raise InvalidParameter("--all shows every queue: leave the job and --queue out")
    with Client(settings_of(redis_url, queue)) as client:
        queues = client.queues()
    if as_json:
        for status in queues:
            print_json(asdict(status) | _ages(status))
        return
    from rose_cli.queue_table import queue_table
    from rose_cli.tables import print_drawing, terminal_width

    if queues:
        print_drawing(queue_table(queues, terminal_width()))
    else:
        print_text("no worker has joined a queue on this Redis yet")


def _ages(status: JobStatus | QueueStatus) -> dict[str, float | None]:
    """What `..._ms`, which are times, do not say by themselves."""
    if isinstance(status, JobStatus):
        return {}
    began = status.oldest_running_ms
    return {"oldest_running_age_s": None if began is None else round(seconds_since(began), 3)}


def facts_of(status: JobStatus | QueueStatus) -> dict[str, str]:
    return _job(status) if isinstance(status, JobStatus) else _queue(status)


def _queue(status: QueueStatus) -> dict[str, str]:
    from rose_cli.queue_table import describe_model  # loads rich

    began = status.oldest_running_ms
    oldest = "" if began is None else f", the oldest submitted {age(began)} ago"
    model = "no worker has come yet" if status.served is None else describe_model(status.served)
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


def _tenants(status: TenantsStatus) -> dict[str, str]:
    """Nothing where there are none."""
    busy = [one for one in status.top if one.waiting or one.running]
    lines = [
        f"{printable(one.name)}: {one.waiting:,} waiting, {one.running:,} running" for one in busy
    ]
    if (more := status.count - len(busy)) > 0:
        lines.append(f"and {more:,} more")
    return {"tenants": "\n".join(lines)} if lines else {}


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
    if status.tenant:
        facts["tenant"] = printable(status.tenant)
    if status.retry_of:
        facts["retry of"] = status.retry_of
    return facts


def _jobs(count: int) -> str:
    return "idle" if count == 0 else "1 job" if count == 1 else f"{count} jobs"


def _moment(at_ms: int | None) -> str:
    if at_ms is None:
        return "-"
    return f"{local_time(at_ms)} ({age(at_ms)} ago)"


def cancel(
    job_id: JobId, redis_url: RedisUrl = None, queue: Queue = None, as_json: AsJson = False
) -> None:
    """Stop a job: at once if it waits, within one step if it runs."""
    with Client(settings_of(redis_url, queue)) as client:
        stopping = client.job(job_id).cancel()
    text = f"{job_id} is being cancelled" if stopping else f"{job_id} had ended already"
    print_result({"id": job_id, "cancelled": stopping}, text, as_json=as_json)
