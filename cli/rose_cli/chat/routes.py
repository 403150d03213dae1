"""POST /v1/demo/kill-worker: the route that only the gateway of `rose chat` has."""

import asyncio

from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel, Field

from rose_cli.chat.worker_pool import WorkerPool
from rose_gateway.errors import ApiError
from rose_gateway.routes.dependencies import CallerDependency

router = APIRouter(tags=["demo"])


class KilledAnswer(BaseModel):
    worker: str = Field(description="killed with SIGKILL")
    jobs: int = Field(description="that it held")
    successor: str = Field(description="started in its place")


@router.post("/v1/demo/kill-worker", summary="Kill a worker that is at work")
async def kill_worker(request: Request, _: CallerDependency) -> KilledAnswer:
    """The one with most jobs. They go on at another worker when its lease lapses. 409 if no worker
    has any."""
    pool: WorkerPool = request.app.state.pool
    killed = await asyncio.to_thread(pool.kill_one_at_work)
    if killed is None:
        raise ApiError(
            409, "no worker has a job in hand: ask for something first", code="nobody_at_work"
        )
    return KilledAnswer(worker=killed.worker, jobs=killed.jobs, successor=killed.successor)


def install(app: FastAPI, pool: WorkerPool) -> None:
    app.state.demo = True
    app.state.pool = pool
    app.include_router(router)
