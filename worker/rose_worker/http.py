"""/metrics, /healthz and /readyz, from a thread of their own.

A worker is healthy if its engine runs, and ready if it can reach Redis. So a worker whose Redis is
away stays healthy: a restart would throw its work away and not bring Redis back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from rose.errors import ConfigurationError

Check = Callable[[], str | None]
"""Returns what is wrong, or None."""


class HttpServer:
    """Serves until `close`. Every response names the worker in its header `Rose-Worker`.

    Raises:
        ConfigurationError: the address cannot be bound.
    """

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        *,
        name: str,
        healthy: Check,
        ready: Check,
    ) -> None:
        routes: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            "/metrics": lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry)),
            "/healthz": lambda: _verdict(healthy()),
            "/readyz": lambda: _verdict(ready()),
        }

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                route = routes.get(self.path.partition("?")[0])
                status, content_type, body = (
                    route() if route else (404, "text/plain", b"not found\n")
                )
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Rose-Worker", name)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Requests are not logged."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise ConfigurationError(
                f"cannot serve metrics on {host}:{port}: {error.strerror or error}; "
                "set ROSE_HTTP_PORT (0 for a free port)"
            ) from None
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True, name="http")
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _verdict(problem: str | None) -> tuple[int, str, bytes]:
    if problem is None:
        return 200, "text/plain", b"ok\n"
    return 503, "text/plain", f"{problem}\n".encode()
