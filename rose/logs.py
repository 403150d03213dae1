"""The log of a service: lines for people, or JSON for machines. Neither holds prompts or outputs.

A JSON line has `time`, `level`, `logger`, `message` and the fields of the service, `job` if it
concerns one (`extra={"job": id}`), and the fields that the call adds (`extra={"fields":
{...}}`). An exception is logged with its type and traceback, but without its text, which may
quote a prompt.

Whoever reads the lines may stop reading. No caller waits for it: a thread writes.
"""

import contextlib
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import IO, Any

#: Lines that wait for whoever reads them. Those beyond are counted and left out.
_MAX_WAITING = 10_000
#: How long the end of a process waits for the last lines.
_FLUSH_S = 2.0

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure(
    level: str, form: str, fields: Mapping[str, str], *, exception_text: bool = True
) -> None:
    """Set up logging for the process, to standard error.

    `form`: text or json. `fields`: what every JSON line has. `exception_text`: False for a service
    whose exceptions may quote what others have sent; lines for people then lack it, too.
    """
    handler = BackgroundHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter(fields))
    else:
        handler.setFormatter(logging.Formatter(_TEXT) if exception_text else ReticentFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


class BackgroundHandler(logging.Handler):
    """Writes lines in a thread of its own. A stream that is closed at its other end takes no more,
    and nobody can be told."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self._stream = stream
        self._process = 0
        self._begin()

    def _begin(self) -> None:
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._given = self._written = self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        if self._process != os.getpid():  # a fork has no thread, and its parent writes what waits
            self._process = os.getpid()
            self._begin()
            threading.Thread(target=self._write, name="log", daemon=True).start()
        if self._lines.qsize() >= _MAX_WAITING:
            self._left_out += 1
            return
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - logging's way: a wrong call does not end its caller
            self.handleError(record)
            return
        self._given += 1
        self._lines.put(line)

    def flush(self) -> None:
        """Wait for the lines that are there, but not for long."""
        deadline = time.monotonic() + _FLUSH_S
        while self._written < self._given and time.monotonic() < deadline:
            time.sleep(0.002)

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            left_out, self._left_out = self._left_out, 0
            if left_out:
                line = f"{left_out} lines of the log are left out: nobody read them\n{line}"
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(line + "\n")
                self._stream.flush()
            self._written += 1


class JsonFormatter(logging.Formatter):
    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__()
        self._fields = dict(fields)

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields,
            **getattr(record, "fields", {}),
        }
        if (job_id := getattr(record, "job", None)) is not None:
            fields["job"] = job_id
        if record.exc_info and record.exc_info[0] is not None:
            error_type, _, trace = record.exc_info
            fields["exception"] = error_type.__name__
            fields["traceback"] = "".join(traceback.format_tb(trace))
        return json.dumps(fields, ensure_ascii=False)


class ReticentFormatter(logging.Formatter):
    """Lines for people. An exception is its type and where it was raised."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        error_type, _, trace = ei
        name = "" if error_type is None else error_type.__name__
        return "".join([*traceback.format_tb(trace), name])
