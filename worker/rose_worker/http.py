"""/metrics, /healthz and /readyz, from threads of their own.

A worker is healthy if its engine runs, and ready if it can reach Redis. So a worker whose Redis is
unreachable stays healthy: a restart would throw its work away and not bring Redis back.
"""

import _thread
import contextlib
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from rose.errors import ConfigurationError
from rose.web_access import ANY, WebAccess, is_loopback

Check = Callable[[], str | None]
"""Returns what is wrong, or None."""

_Routes = dict[str, Callable[[], tuple[int, str, bytes]]]

#: Connections at once, each with a thread. One more closes the oldest: a client that holds
#: connections open does not keep probes out.
MAX_CONNECTIONS = 16
_MAX_HEAD_BYTES = 64 * 1024
#: Time for a request to arrive and its response to be sent.
MAX_CONNECTION_S = 10.0

log = logging.getLogger("rose.worker")


class HttpServer:
    """Serves until `close`. Every response names the worker in its header `Rose-Worker`. Until
    `serve` is called the worker is healthy, and not ready.

    Raises:
        ConfigurationError: the address cannot be bound.
    """

    def __init__(self, host: str, port: int, *, name: str) -> None:
        self._routes: _Routes = {}
        self.serve(CollectorRegistry(), healthy=lambda: None, ready=lambda: "the model is loading")
        try:
            self._server = _Server((host, port), _handler(self._routes, name, host))
        except OSError as error:
            raise ConfigurationError(
                f"cannot serve metrics on {host}:{port}: {error.strerror or error}; "
                "set ROSE_HTTP_PORT (0 for a free port)"
            ) from None
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True, name="http")
        self._thread.start()

    def serve(self, registry: CollectorRegistry, *, healthy: Check, ready: Check) -> None:
        """From now on these metrics and checks."""
        self._routes |= {
            "/metrics": lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry)),
            "/healthz": lambda: _verdict(healthy()),
            "/readyz": lambda: _verdict(ready()),
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Head:
    """What a request begins with: no more of it is read than a bound."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._left = _MAX_HEAD_BYTES

    def readline(self, limit: int) -> bytes:
        line: bytes = self._source.readline(min(limit, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise HTTPException("the request line and the headers are too long")
        return line

    def close(self) -> None:
        self._source.close()


def _handler(routes: _Routes, name: str, host: str) -> type[BaseHTTPRequestHandler]:
    # Beyond loopback it is asked by names that only its operators know.
    access = WebAccess(host, () if is_loopback(host) else (ANY,))

    class Handler(BaseHTTPRequestHandler):
        timeout = MAX_CONNECTION_S  # for each read and write; the server bounds their sum

        def setup(self) -> None:
            super().setup()
            self.rfile = _Head(self.rfile)  # type: ignore[assignment]

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except HTTPException:
                self.close_connection = True

        def do_GET(self) -> None:
            headers = {key.lower(): value for key, value in self.headers.items()}
            local = str(self.connection.getsockname()[0]).removeprefix("::ffff:")
            if access.foreign(headers, local) or len(self.headers.get_all("host", ())) > 1:
                self.send_error(403, "metrics are not for web pages")
                return
            route = routes.get(self.path.partition("?")[0])
            status, content_type, body = route() if route else (404, "text/plain", b"not found\n")
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Rose-Worker", name)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Requests are not logged."""

    return Handler


class _Server(ThreadingHTTPServer):
    """A thread a connection, up to a limit."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = _family(*address)
        self._free = threading.Semaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._since: dict[socket.socket, float] = {}
        """when each open connection was accepted, oldest first"""
        super().__init__(address, handler)

    def server_bind(self) -> None:
        if self.server_address[0] == "::":
            # Where only one kind of address is given, those of the other are asked too.
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        while not self._free.acquire(blocking=False):
            self._hang_up(1)
            if self._free.acquire(timeout=0.1):
                break
        with self._lock:
            self._since[request] = time.monotonic()
        try:
            # threading's own waits for a thread that ends, for want of memory, before it runs.
            _thread.start_new_thread(self.process_request_thread, (request, client_address))
        except RuntimeError:  # no thread can be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._since.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Twice a second: close the connections that have been open for too long."""
        began_before = time.monotonic() - MAX_CONNECTION_S
        with self._lock:
            late = sum(since < began_before for since in self._since.values())
        self._hang_up(late)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A client that disconnects is not an error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            log.exception("a request for metrics or health failed")

    def _hang_up(self, count: int) -> None:
        """On those that have been open longest. Their threads then end and close the sockets."""
        with self._lock:
            for connection in list(self._since)[:count]:
                del self._since[connection]
                with contextlib.suppress(OSError):  # the client was faster
                    connection.shutdown(socket.SHUT_RDWR)


def _family(host: str, port: int) -> socket.AddressFamily:
    """IPv4 where the host has it. Raises: OSError: there is no such host."""
    known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    families = [family for family, *_ in known]
    return socket.AF_INET if socket.AF_INET in families else families[0]


def _verdict(problem: str | None) -> tuple[int, str, bytes]:
    if problem is None:
        return 200, "text/plain", b"ok\n"
    return 503, "text/plain", f"{problem}\n".encode()
