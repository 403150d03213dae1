"""A Redis in this process, which understands the scripts of the queue: fakeredis behind a port.

python -m rose_producer.testing.fake_redis PORT     serves until it is killed
"""

import socket
import sys
import threading
from typing import Any, Self

from rose.errors import BrokerUnavailable
from rose.installation import how_to_install

#: The oldest that the queue runs on.
_VERSION = (7, 0)


class FakeRedis:
    """Keeps nothing when it is closed."""

    def __init__(self) -> None:
        """Raises: BrokerUnavailable: fakeredis is not installed."""
        self._server = _server(0)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name="fake redis", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._server.server_address[1]}/0"


class _Lua:
    """Runs scripts without their first line if that is a `#!`, which fakeredis does not know.

    Each is compiled once. Lua collects its garbage by itself: a whole collection after each script,
    as fakeredis asks for, costs more than the script.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._compiled: dict[bytes, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def execute(self, script: bytes | str) -> Any:
        if isinstance(script, str):  # fakeredis' own
            return None if script == "collectgarbage()" else self._runtime.execute(script)
        if script not in self._compiled:
            lua = script.partition(b"\n")[2] if script[:2] == b"#!" else script
            self._compiled[script] = self._runtime.compile(lua)
        return self._compiled[script]()


class _Chunks:
    """Reads what has come. fakeredis reads a line at a time, and looks for replies after each."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def readline(self) -> bytes:
        """Nothing: nothing has come, or the client is gone."""
        try:
            return self._connection.recv(1 << 16)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """The connection is its handler's."""


def _lua(mixin: Any, server: Any) -> _Lua:
    runtime = mixin._rose_runtime(server)
    if not isinstance(runtime, _Lua):
        runtime = server._lua_runtime = _Lua(runtime)
    return runtime


def _server(port: int) -> Any:
    try:
        from fakeredis import TcpFakeServer
        from fakeredis.commands_mixins.scripting_mixin import ScriptingCommandsMixin
    except ImportError as error:
        raise BrokerUnavailable(
            f"a Redis in this process needs fakeredis ({error}): {how_to_install('testing')}"
        ) from None
    patched: Any = ScriptingCommandsMixin
    if not hasattr(patched, "_rose_runtime"):  # once a process
        patched._rose_runtime = patched._get_server_runtime
        patched._get_server_runtime = _lua
    server = TcpFakeServer(("127.0.0.1", port), server_type="redis", server_version=_VERSION)
    server.daemon_threads = True  # a client that a test has left open keeps no process alive
    handler: Any = server.RequestHandlerClass

    class Handler(handler):  # type: ignore[misc]
        # It writes a reply in pieces, and each would wait until the one before it is acknowledged.
        disable_nagle_algorithm = True
        rfile: Any

        def setup(self) -> None:
            super().setup()
            self.rfile.close()
            self.rfile = _Chunks(self.connection)

    server.RequestHandlerClass = Handler
    return server


if __name__ == "__main__":
    _server(int(sys.argv[1])).serve_forever()
