"""A Redis in this process, which understands the scripts of the queue: fakeredis behind a port.

python -m rose_producer.testing.fake_redis PORT     serves until it is killed
"""

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


class _LuaOfOldRedis:
    """Runs a script without its first line if that is a `#!`, which fakeredis does not know."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def execute(self, script: bytes) -> Any:
        return self._runtime.execute(script.partition(b"\n")[2] if script[:2] == b"#!" else script)


def _server(port: int) -> Any:
    try:
        from fakeredis import TcpFakeServer
        from fakeredis.commands_mixins.scripting_mixin import ScriptingCommandsMixin
    except ImportError as error:
        raise BrokerUnavailable(
            f"a Redis in this process needs fakeredis ({error}): {how_to_install('testing')}"
        ) from None
    patched: Any = ScriptingCommandsMixin
    runtime_of: Any = patched._get_server_runtime
    if not getattr(patched, "_rose_lua", False):  # once a process
        patched._rose_lua = True
        patched._get_server_runtime = lambda mixin, server: _LuaOfOldRedis(
            runtime_of(mixin, server)
        )
    server = TcpFakeServer(("127.0.0.1", port), server_type="redis", server_version=_VERSION)
    server.daemon_threads = True  # a client that a test has left open keeps no process alive
    # It writes a reply in pieces, and each would wait until the one before it is acknowledged.
    handler: Any = server.RequestHandlerClass
    server.RequestHandlerClass = type("Handler", (handler,), {"disable_nagle_algorithm": True})
    return server


if __name__ == "__main__":
    _server(int(sys.argv[1])).serve_forever()
