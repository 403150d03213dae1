"""Many streams in one asyncio client, all at once: `python -m tests.chaos.crowd CONTEXT`.

They follow the latest jobs, many streams to a job, and ask for the status of each as well. What
they were given is written down once for each job: it must be the same for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from rose.errors import RoseError
from rose_producer import AsyncClient
from tests.chaos import journal
from tests.chaos.context import Context, run_process
from tests.chaos.journal import Journal
from tests.chaos.plan import RAW_BASE

#: Jobs at least: results of older ones may expire on purpose.
LATEST = 90

#: Bytes of a journal that hold more submits than that.
_RECENT = 64 * 1024

Seen = tuple[tuple[int, ...], str]


def latest_jobs(submitted: Sequence[tuple[str, list[Any]]]) -> dict[int, str]:
    """Those that were submitted through the client last, by number."""
    jobs = {number: job_id for _, (number, job_id, _) in submitted if number < RAW_BASE}
    return {number: jobs[number] for number in sorted(jobs)[-LATEST:]}


async def follow(client: AsyncClient, job_id: str) -> Seen | str:
    """What a stream gives, or what it raises."""
    tokens: list[int] = []
    texts: list[str] = []
    try:
        await client.job(job_id).status()
        async for event in client.job(job_id).stream():
            tokens += getattr(event, "token_ids", ())
            texts.append(getattr(event, "text", ""))
    except RoseError as error:
        return repr(error)
    return tuple(tokens), "".join(texts)


async def _main(context: Context) -> None:
    submitted = [
        entry
        for index in range(context.options.producers)
        for entry in journal.read_end(context.folder / f"submitted-{index}.jsonl", _RECENT)
    ]
    jobs = latest_jobs(submitted)
    record = Journal(context.folder / f"crowd-{context.incarnation}.jsonl")
    each = -(-context.options.crowd // len(jobs))
    client = context.client()
    if not isinstance(client, AsyncClient):
        raise TypeError("a crowd needs the asyncio client")
    async with client:
        ids = [job_id for job_id in jobs.values() for _ in range(each)]
        seen = await asyncio.gather(*(follow(client, job_id) for job_id in ids))
    for n, (number, job_id) in enumerate(jobs.items()):
        varieties = set(seen[n * each : (n + 1) * each])
        raised = [said for said in varieties if isinstance(said, str)]
        given = [said for said in varieties if not isinstance(said, str)]
        record.write(number, job_id, each, given, raised)


def main() -> None:
    run_process(_main)


if __name__ == "__main__":
    main()
