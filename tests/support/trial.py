"""A gateway whose workers may be killed by a request: `python -m tests.support.trial`."""

import os
import signal
import sys

from fastapi import FastAPI

from rose_cli.local.broker import free_port
from rose_cli.local.services import ServiceProcess, WorkerProcess
from rose_gateway.app import create_app
from rose_gateway.errors import ApiError
from rose_gateway.server import listen, run
from rose_gateway.settings import GatewaySettings


class TrialGateway(ServiceProcess):
    """On loopback, for workers that run already."""

    kind = "gateway"

    def __init__(self, redis_url: str, queues: str, *workers: WorkerProcess) -> None:
        """`queues`: names, with commas between them."""
        pids = ",".join(f"{worker.name}:{worker.pid}" for worker in workers)
        port = free_port()
        given: dict[str, str | float] = {"redis_url": redis_url, "queues": queues, "pids": pids}
        super().__init__("trial", port, ("tests.support.trial",), {**given, "port": port})

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"


def add_kill(app: FastAPI, pids: dict[str, int]) -> None:
    """`pids`: of the workers, by their names."""
    app.state.demo = True

    @app.post("/v1/demo/kill-worker")
    async def kill_worker() -> dict[str, str]:
        for queue in await app.state.services.queue_statuses.all():
            for name, worker in queue.by_worker.items():
                if worker.jobs:
                    os.kill(pids[name], signal.SIGKILL)
                    return {"worker": name}
        raise ApiError(409, "no worker has a job in hand", code="no_job_in_hand")


def main() -> None:
    given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
    pids = dict(pair.split(":") for pair in given.pop("pids").split(","))
    settings = GatewaySettings(
        redis_url=given["redis-url"], queues=given["queues"], port=int(given["port"])
    )
    app = create_app(settings)
    add_kill(app, {name: int(pid) for name, pid in pids.items()})
    run(settings, app, listen(settings.host, settings.port))


if __name__ == "__main__":
    main()
