"""The application: its routes, its errors, its life, and what is around every request."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI

from rose.web_access import WebAccess, listed
from rose_gateway.batches.runner import running_batches
from rose_gateway.files.files import swept
from rose_gateway.http import error_answers
from rose_gateway.http.authentication import Authentication
from rose_gateway.http.cross_origin import CrossOrigin
from rose_gateway.http.middleware import AccessLog, BodyLimit
from rose_gateway.metrics import Metrics
from rose_gateway.pacing import LoopPacer
from rose_gateway.page import routes as page
from rose_gateway.routes import (
    batches,
    choices,
    embeddings,
    files,
    health,
    job_list,
    job_streams,
    jobs,
    message_batches,
    messages,
    metrics,
    models,
    response_socket,
    responses,
    status,
    stored_chats,
    tokens,
)
from rose_gateway.services import open_services
from rose_gateway.settings import GatewaySettings
from rose_gateway.webhooks.runner import told_webhooks

_DESCRIPTION = """
Every answer is a job in a durable queue: it outlives this server, its connections and its workers.
Send an API key as `Authorization: Bearer ...` where keys were made.
"""

#: OpenAI's endpoints, Anthropic's, then our own.
_ROUTED = (
    *(response_socket, responses, choices, stored_chats, embeddings, models, files, batches),
    *(message_batches, messages, tokens),
    *(job_list, jobs, job_streams, status, health, metrics),
)


class _Application(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Without what the framework adds on its own: a wrong request is 400 here, never 422."""
        if self.openapi_schema is None:
            document = super().openapi()
            for operations in document["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
            for schema in ("HTTPValidationError", "ValidationError"):
                document["components"]["schemas"].pop(schema, None)
            self.openapi_schema = document
        return self.openapi_schema


def create_app(settings: GatewaySettings) -> FastAPI:
    """`app.state.services` is there while the application runs, `app.state.metrics` always.
    `app.state.demo`: whoever makes this a trial sets it, and adds POST /v1/demo/kill-worker."""
    own_metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        async with (
            open_services(settings, own_metrics, app.state.pacer) as services,
            swept(services.files),
            running_batches(services),
            told_webhooks(services),
        ):
            app.state.services = services
            app.openapi()  # making it takes the event loop a tenth of a second
            yield

    app = _Application(
        title="roseinfer",
        version=version("roseinfer"),
        summary="OpenAI's API over a durable queue.",
        description=_DESCRIPTION,
        lifespan=lifespan,
        responses=error_answers.ERROR_RESPONSES,
        redirect_slashes=False,
        # Pages of the framework's that load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
    )
    app.state.metrics = own_metrics
    app.state.demo = False
    app.state.pacer = LoopPacer()
    error_answers.install(app)
    for module in _ROUTED:
        app.include_router(module.router)
    if settings.page:
        app.include_router(page.router)
    _add_middleware(app, settings, own_metrics)
    return app


def _add_middleware(app: FastAPI, settings: GatewaySettings, own_metrics: Metrics) -> None:
    """The last one is the outermost."""
    app.add_middleware(
        BodyLimit,
        metrics=own_metrics,
        max_bytes=settings.max_body_bytes,
        max_total_bytes=settings.max_bodies_bytes,
        max_file_bytes=settings.max_file_bytes,
        pacer=app.state.pacer,
    )
    hosts, origins = listed(settings.allowed_hosts), listed(settings.allowed_origins)
    access = WebAccess(settings.host, hosts, origins)
    app.add_middleware(Authentication, access=access)
    app.add_middleware(CrossOrigin, access=access)
    app.add_middleware(AccessLog, metrics=own_metrics)
