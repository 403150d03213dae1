"""What each job says when nobody disturbs it."""

import asyncio
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any

from rose.engine_records import float32
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import AsyncClient, Request
from tests.chaos.engines import settings_of
from tests.chaos.job_record import Answer
from tests.chaos.plan import JobPlan
from tests.support.echo import digest, echoed, echoed_text

_AT_ONCE = 64
#: vLLM takes its time.


def null_answer(job: JobPlan) -> Answer:
    """Of the null engine."""
    if job.encode is not None:
        rows = [_row(str(text), job.encode) for text in job.prompt]
        data = b"".join(map(float32, rows))
        return Answer((), "", [len(rows[0]), b64encode(data).decode()])
    prompt: list[int] = []
    for part in [job.prompt] if isinstance(job.prompt, str) else job.prompt:
        if isinstance(part, int):
            prompt.append(part)
        else:
            prompt += (part if isinstance(part, str) else dict(part)["content"]).encode()
    count = job.sampling["max_new_tokens"]
    return Answer(echoed(prompt, count), echoed_text(prompt, count))


def _row(text: str, encode: Mapping[str, Any]) -> list[float]:
    if encode.get("task") == "score":
        words = set(encode["queries"][0].split())
        return [len(words & set(text.split())) / len(words)]
    return digest(text, encode["dimensions"] or 8)


async def model_answers(jobs: Iterable[JobPlan], engine: str) -> dict[int, Answer]:
    """The same prompts, by one worker that nothing befalls."""
    gate = asyncio.Semaphore(_AT_ONCE)
    with (
        EmbeddedBroker(fake=False) as broker,
        WorkerProcess("calm", broker.url, **settings_of(engine)) as worker,
    ):
        await asyncio.to_thread(worker.wait_ready)
        async with AsyncClient(redis_url=broker.url) as client:

            async def ask(job: JobPlan) -> tuple[int, Answer]:
                async with gate:
                    request = Request(job.prompt, sampling=job.sampling)
                    handle = (await client.submit_many([request]))[0]
                    result = await handle.result()
                    return job.number, Answer(result.token_ids, result.text)

            return dict(await asyncio.gather(*(ask(job) for job in jobs)))
