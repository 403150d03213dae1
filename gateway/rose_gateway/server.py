"""Runs the gateway in this process: its socket, its connections, its end."""

import asyncio
import gc
import logging
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from rose import logs
from rose.errors import ConfigurationError
from rose.watchdog import Watchdog
from rose.web_access import is_loopback
from rose_gateway.access.keys import open_keys
from rose_gateway.app import create_app
from rose_gateway.http.connections import Connections, Timeouts, guarded_by
from rose_gateway.settings import GatewaySettings
from rose_gateway.storage.file_store import FileStore

log = logging.getLogger("rose.gateway")

_BACKLOG = 2048
#: Files of a process that are no clients: Redis, logs, the event loop's own.
_OWN_FILES = 128
#: After the grace period, and after a second signal: what takes longer hangs.
_END_S = 15.0


def run(
    settings: GatewaySettings, app: FastAPI | None = None, listener: socket.socket | None = None
) -> None:
    """Serve to the end.

    `app`: of `create_app`, with what the caller has added. `listener`: of `listen`.

    Raises:
        RoseError: it cannot start.
    """
    logs.configure(settings.log_level, settings.log_format, {}, exception_text=False)
    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.setLevel(logging.ERROR)  # the rest is in the access log
    uvicorn_log.addFilter(_not_broken_off)
    asyncio.run(check_exposure(settings))
    FileStore(settings.storage)  # a wrong setting is told at once
    app = app or create_app(settings)
    max_open = connections_of(_raise_file_limit(), settings.max_connections)
    timeouts = Timeouts(settings.header_timeout_s, settings.body_timeout_s)
    connections = Connections(max_open, timeouts, app.state.metrics, settings.max_unread_bytes)
    listener = listener or listen(settings.host, settings.port)
    config = _uvicorn_config(settings, app, connections)
    host, port = listener.getsockname()[:2]
    queues = ", ".join(settings.queue_names)
    log.info(
        "serving queue %s at http://%s:%d/v1", queues, f"[{host}]" if ":" in host else host, port
    )
    gc.freeze()  # what is there now stays: to look at it again and again would hold up streams
    _Server(config, app, connections, settings.grace_s).run(sockets=[listener])


def _uvicorn_config(
    settings: GatewaySettings, app: FastAPI, connections: Connections
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=guarded_by(connections),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=max(1, round(settings.keep_alive_s)),
    )


async def check_exposure(settings: GatewaySettings) -> None:
    """Raises:
    ConfigurationError: others than this machine would come in without a key.
    BrokerUnavailable
    """
    if settings.open or is_loopback(settings.host):
        return
    keys, redis = open_keys(settings)
    try:
        guarded = await keys.exist()
    finally:
        await redis.aclose()
    if not guarded:
        raise ConfigurationError(
            f"{settings.host} can be reached from other machines, and there are no API keys: make "
            "one (rose keys create NAME), or say ROSE_GATEWAY_OPEN=true to serve everybody"
        )


def listen(host: str, port: int) -> socket.socket:
    """Raises: ConfigurationError"""
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(
            address,
            family=family,
            backlog=_BACKLOG,
            dualstack_ipv6=family == socket.AF_INET6 and host == "::",
        )
    except OSError as error:
        raise ConfigurationError(
            f"cannot serve at {host}:{port}: {error.strerror or error}; set ROSE_GATEWAY_HOST "
            "and ROSE_GATEWAY_PORT (0 for a free port)"
        ) from None


def connections_of(files: int, wanted: int) -> int:
    """How many may be open where a process may open so many files.

    Raises: ConfigurationError: none.
    """
    most = files - _OWN_FILES
    if most < 1:
        raise ConfigurationError(
            f"a process may have {files} files open here, and the gateway needs {_OWN_FILES} for "
            "itself: raise the limit (ulimit -Hn, LimitNOFILE=)"
        )
    if most < wanted:
        log.warning(
            "no more than %d connections, where ROSE_GATEWAY_MAX_CONNECTIONS is %d: a process may "
            "have %d files open here (ulimit -Hn, LimitNOFILE=)",
            most,
            wanted,
            files,
        )
    return min(most, wanted)


def _raise_file_limit() -> int:
    """Each connection is a file. Returns how many this process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return soft if soft != resource.RLIM_INFINITY else 1 << 30
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _not_broken_off(record: logging.LogRecord) -> bool:
    """Answers that end with the process, or with a client that takes nothing, are no errors."""
    broken_off = record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not broken_off and "without completing response" not in str(record.msg)


class _Server(uvicorn.Server):
    """SIGTERM or SIGINT: no new connections; open answers have the grace period. Again: at once."""

    def __init__(
        self, config: uvicorn.Config, app: FastAPI, connections: Connections, grace_s: float
    ) -> None:
        super().__init__(config)
        self._app = app
        self._connections = connections
        self._grace_s = grace_s
        self._at_once = False
        self._watchdog = Watchdog(grace_s, _END_S)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals(), self._watchdog.watching():
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's
        # The signal is not noted: uvicorn would raise it again at the end.
        self.force_exit = self._at_once  # the third
        self._at_once = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("stopping: open answers have %g s", self._grace_s)
        closing = asyncio.create_task(self._close_late())
        try:
            await super().shutdown(sockets)
        finally:
            closing.cancel()
        log.info("stopped")

    async def _close_late(self) -> None:
        """Then the clients go on elsewhere: the jobs do not end with their streams."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._grace_s
        while loop.time() < deadline and not self._at_once:  # noqa: ASYNC110 - set by a signal
            await asyncio.sleep(0.05)
        self._app.state.services.stopping.set()
        self._connections.abandon_all()
