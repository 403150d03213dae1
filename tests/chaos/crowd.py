"""Many streams in one asyncio client, all at once: `python -m tests.chaos.crowd CONTEXT`.

They follow the jobs that a file in the context's folder names, many streams to a job, and ask for
the status of each as well. What they were given is written down once for each job: it must be the
same for all.
"""

import asyncio
import json

from rose.errors import RoseError
from rose_producer import AsyncClient
from tests.chaos.context import CROWD, Context, run_process
from tests.chaos.journal import Journal

Seen = tuple[tuple[int, ...], str]


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
    jobs: dict[str, str] = json.loads((context.folder / CROWD).read_text())
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
        record.write(int(number), job_id, each, given, raised)


def main() -> None:
    run_process(_main)


if __name__ == "__main__":
    main()
