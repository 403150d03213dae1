"""A receiver in a moody process: `python -m tests.chaos.webhooks.receiver --port P --folder F ...`.

It answers 500, redirects, hangs, or closes the connection, before or after it has noted an event.
What it notes is a line of `received` in the folder, written before the answer. `secrets` there has
a secret that holds in each line.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

Mood = Literal["take", "fail", "redirect", "hang", "drop", "take and drop"]

#: How often each comes, of a hundred.
MOODS: dict[Mood, int] = {
    "take": 55,
    "fail": 20,
    "redirect": 5,
    "hang": 8,
    "drop": 6,
    "take and drop": 6,
}
#: Longer than a gateway waits.
_HANG_S = 20.0


@dataclass(frozen=True, slots=True)
class Note:
    webhook_id: str
    event: Any
    """None: no secret that holds has signed it"""
    mood: Mood

    @property
    def taken(self) -> bool:
        return self.mood in ("take", "take and drop")


def notes(folder: Path) -> Iterator[Note]:
    """All that are written."""
    path = folder / "received"
    if path.exists():
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):  # else it is being written
                yield Note(**json.loads(line))


def write_secrets(folder: Path, secrets: list[str]) -> None:
    """At once, for a reader."""
    new = folder / "secrets.new"
    new.write_text("\n".join(secrets))
    new.replace(folder / "secrets")


def _verified(folder: Path, body: bytes, headers: dict[str, str]) -> Any:
    for secret in (folder / "secrets").read_text().split():
        try:
            return Webhook(secret).verify(body, headers)
        except WebhookVerificationError:
            continue
    return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int, folder: Path) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.folder = folder
        self.draw = random.Random(f"{port}:{os.getpid()}")
        # One write a line, whole: several threads append, and a kill may come at any time.
        flags = os.O_APPEND | os.O_CREAT | os.O_WRONLY
        self.log = os.open(folder / "received", flags, 0o600)

    def handle_error(self, *_: Any) -> None:
        """Who asks does not wait for the end of an answer."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        (mood,) = self.server.draw.choices(list(MOODS), list(MOODS.values()))
        event = _verified(self.server.folder, body, dict(self.headers.items()))
        note = Note(self.headers["webhook-id"], event, mood)
        os.write(self.server.log, json.dumps(asdict(note)).encode() + b"\n")
        if mood == "hang":
            time.sleep(_HANG_S)
        elif mood == "take":
            self._answer(204)
        elif mood in ("fail", "redirect"):
            self._answer(500 if mood == "fail" else 302)
        self.close_connection = True

    def _answer(self, status: int) -> None:
        self.send_response(status)
        if status == 302:
            self.send_header("location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    args = parser.parse_args()
    with _Server(args.port, args.folder) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
