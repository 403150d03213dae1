"""What probes ask for."""

import asyncio
from importlib import metadata

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from rose.errors import RoseError
from rose_gateway.routes.dependencies import ServicesDependency
from rose_producer import AsyncClient

router = APIRouter(tags=["health"])

#: Longer than a probe waits for most, shorter than Redis may take.
_PATIENCE_S = 3.0


# As vLLM's server calls it; benchmarks of such servers ask for it first.
@router.head("/health", include_in_schema=False, response_class=PlainTextResponse)
@router.get("/health", include_in_schema=False, response_class=PlainTextResponse)
@router.head("/healthz", include_in_schema=False, response_class=PlainTextResponse)
@router.get("/healthz", response_class=PlainTextResponse)
async def healthz() -> str:
    """The process lives, whether or not Redis does."""
    return "ok\n"


class Version(BaseModel):
    version: str


# As vLLM's server has it.
@router.get("/version", summary="Say which version of roseinfer this is")
async def version() -> Version:
    return Version(version=metadata.version("roseinfer"))


@router.head("/readyz", include_in_schema=False, response_class=PlainTextResponse)
@router.get(
    "/readyz",
    response_class=PlainTextResponse,
    responses={503: {"description": "Redis cannot be reached."}},
)
async def readyz(services: ServicesDependency) -> PlainTextResponse:
    """Redis can be reached, for every queue; a line for each says what serves it.

    A queue without workers takes jobs all the same: they wait.
    """
    try:
        async with asyncio.timeout(_PATIENCE_S):
            lines = await asyncio.gather(*(_line(client) for client in services.clients.values()))
    except (RoseError, TimeoutError) as error:
        return PlainTextResponse(f"{error or 'Redis does not answer'}\n", 503)
    return PlainTextResponse("ok\n" + "".join(lines))


async def _line(client: AsyncClient) -> str:
    """Raises: BrokerUnavailable, MalformedMessage"""
    status = await client.queue_status()
    served = "no worker yet" if status.model is None else f"model {status.model}"
    return f"queue {status.queue}: {served}, {status.running} running, {_waiting(status.waiting)}\n"


def _waiting(by_priority: dict[str, int]) -> str:
    return f"{sum(by_priority.values())} waiting"
