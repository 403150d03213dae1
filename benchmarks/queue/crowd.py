"""Many idle workers in one process: `python -m benchmarks.queue.crowd URL COUNT`.

They are whole workers with the null engine, each with connections of its own. Each logs a line
when it serves. End it with SIGKILL.
"""

import asyncio
import sys

from pydantic import SecretStr

from rose import logs
from rose_worker.null_engine import NullEngine
from rose_worker.service import Worker
from rose_worker.settings import WorkerSettings

#: In the line that each of them logs once it serves.
READY = "serves null"


async def serve(url: str, count: int) -> None:
    settings = [
        WorkerSettings(
            redis_url=SecretStr(url),
            engine="null",
            name=f"idle-{n}",
            http_port=0,
            log_level="info",
        )
        for n in range(count)
    ]
    logs.configure(settings[0].log_level, settings[0].log_format, {"consumer": "crowd"})
    workers = [Worker(each, lambda each=each: NullEngine(each)) for each in settings]  # type: ignore[misc]
    await asyncio.gather(*(worker.run() for worker in workers))


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
