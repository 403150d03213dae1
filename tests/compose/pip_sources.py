"""Where pip on this machine takes packages from, for images that are built here."""

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")

_OPTIONS = ("index-url", "extra-index-url", "find-links")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Requests are not logged."""


class PipSources:
    """pip's configuration on this machine, with its local folders served over HTTP on loopback.

    An image that is built on the host's network reaches them there.
    """

    def __init__(self, first_port: int) -> None:
        """A folder's port stays the same from run to run, so that built layers stay valid."""
        self._first_port = first_port
        self._roots: list[Path] = []
        given = _configured()
        self.conf = "[global]\n" + "".join(
            f"{name} = {' '.join(self._reachable(one) for one in given[name].split())}\n"
            for name in _OPTIONS
            if name in given
        )
        self.authorities = Path(given.get("cert", str(AUTHORITIES))).read_bytes()

    @contextmanager
    def serving(self) -> Iterator[None]:
        with ExitStack() as stack:
            for port, root in enumerate(self._roots, self._first_port):
                stack.enter_context(_serving(root, port))
            yield

    def _reachable(self, source: str) -> str:
        parts = urlsplit(source)
        if parts.scheme not in ("", "file"):
            return source
        folder = Path(parts.path)
        # The pages of an index link to files beside it.
        root = folder.parent if parts.scheme == "file" else folder
        if root not in self._roots:
            self._roots.append(root)
        below = "" if folder == root else f"{folder.name}/"
        return f"http://127.0.0.1:{self._first_port + self._roots.index(root)}/{below}"


@contextmanager
def _serving(root: Path, port: int) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", port), partial(_Quiet, directory=str(root))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def _configured() -> Mapping[str, str]:
    """The environment's values come over the files'."""
    words = [sys.executable, "-m", "pip", "config", "list"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found: dict[str, str] = {}
    for line in sorted(said.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        found[name.rpartition(".")[2]] = value.strip("'\"").replace("\\n", " ")
    return found
