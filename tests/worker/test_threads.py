"""How many threads the engine computes with."""

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest

from rose.cores import usable_cores
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import AsyncClient
from rose_worker.engine import Engine
from rose_worker.null_engine import NullEngine
from rose_worker.service import Worker
from rose_worker.settings import WorkerSettings


@pytest.mark.parametrize(("variable", "threads"), [("64", usable_cores()), ("1", 1)])
def test_there_are_no_more_threads_than_cores_unless_the_setting_says_so(
    variable: str, threads: int
) -> None:
    code = (
        "from rose_worker.rose_engine import set_threads; import torch\n"
        "set_threads(None); print(torch.get_num_threads())\n"
        "set_threads(3); print(torch.get_num_threads())"
    )
    command = ["env", f"OMP_NUM_THREADS={variable}", sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [int(line) for line in ended.stdout.split()] == [threads, 3]


async def test_the_thread_that_loaded_the_model_is_gone_when_jobs_run(
    broker: EmbeddedBroker, queue: str
) -> None:
    """Its OpenMP threads would count beside those of the engine's thread."""
    # given
    settings = WorkerSettings(redis_url=broker.url, queue=queue, engine="null", http_port=0)
    loading: list[threading.Thread] = []

    def load() -> Engine:
        loading.append(threading.current_thread())
        return NullEngine(settings)

    # when
    worker = asyncio.create_task(Worker(settings, load).run())
    async with AsyncClient(redis_url=broker.url, queue=queue) as client:
        await (await client.submit("hello", max_new_tokens=1)).result(90)
    # then
    (thread,) = loading
    assert not thread.is_alive()
    os.kill(os.getpid(), signal.SIGTERM)
    await worker
