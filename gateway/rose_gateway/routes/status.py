"""How the queues and their workers stand."""

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from rose.protocol.calls import ALIVE_S
from rose.protocol.status import QueueStatus
from rose_gateway.access.authentication import Caller
from rose_gateway.routes.dependencies import CallerDependency, ServicesDependency
from rose_gateway.routes.models import may_use
from rose_gateway.services import Services

router = APIRouter(tags=["status"])


class WorkerAnswer(BaseModel):
    name: str
    jobs: int = Field(description="that it holds")
    slots: int | None = Field(description="jobs that it decodes at once; null if unknown")
    silent_s: float = Field(description="since it was heard of; one that lives is every 5 s")


class QueueAnswer(BaseModel):
    queue: str
    model: str | None = Field(description="null before the first worker came")
    waiting: dict[str, int] = Field(description="jobs, by priority")
    running: int = Field(description="jobs that workers hold")
    slots: int = Field(description="of the workers that live")
    generated_tokens: int = Field(
        description="ever: the difference between two answers, divided by that of their `at`, is "
        "the tokens per second"
    )
    at: float = Field(description="Unix seconds by Redis' clock")
    workers: list[WorkerAnswer]


class StatusAnswer(BaseModel):
    object: Literal["status"] = "status"
    demo: bool = Field(description="this is a trial whose workers may be killed by a request")
    queues: list[QueueAnswer]


@router.get("/v1/status", summary="Retrieve the status of the queues")
async def retrieve_status(
    request: Request, services: ServicesDependency, caller: CallerDependency
) -> StatusAnswer:
    """The queues whose models the caller may use, with the load of all callers."""
    seen = await _seen(services, caller)
    queue_statuses = await services.queue_statuses.all()
    return StatusAnswer(
        demo=request.app.state.demo,
        queues=[
            _answer(status) for status in queue_statuses if seen is None or status.queue in seen
        ],
    )


async def _seen(services: Services, caller: Caller) -> set[str] | None:
    """The queues that the caller may see; None: all of them."""
    if caller.limits.models is None:
        return None
    names = await services.catalogue.names()
    return {model.queue for name, model in names.items() if may_use(caller, name, model)}


def _answer(status: QueueStatus) -> QueueAnswer:
    workers = [
        WorkerAnswer(name=name, jobs=one.jobs, slots=one.slots, silent_s=one.silent_ms / 1000)
        for name, one in sorted(status.by_worker.items())
    ]
    return QueueAnswer(
        queue=status.queue,
        model=status.model,
        waiting=status.waiting,
        running=status.running,
        slots=sum(one.slots or 0 for one in workers if one.silent_s < ALIVE_S),
        generated_tokens=status.generated_tokens,
        at=status.now_ms / 1000,
        workers=workers,
    )
