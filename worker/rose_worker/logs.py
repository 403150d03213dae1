"""The worker's log: lines for people, or JSON for machines. Neither holds a prompt or an output.

A JSON line has `time`, `level`, `logger`, `message` and `consumer`, and `job` if it is about one
(`extra={"job": id}`).
Of an exception it has the type and the traceback, but not the text, which may quote a prompt.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime

from rose_worker.settings import WorkerSettings

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure(settings: WorkerSettings, consumer: str) -> None:
    """Set up logging for the process. `consumer`: the worker's name."""
    handler = logging.StreamHandler(sys.stderr)
    as_json = settings.log_format == "json"
    handler.setFormatter(JsonFormatter(consumer) if as_json else logging.Formatter(_TEXT))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])


class JsonFormatter(logging.Formatter):
    def __init__(self, consumer: str) -> None:
        super().__init__()
        self._consumer = consumer

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "consumer": self._consumer,
        }
        if (job_id := getattr(record, "job", None)) is not None:
            fields["job"] = job_id
        if record.exc_info and record.exc_info[0] is not None:
            error_type, _, trace = record.exc_info
            fields["exception"] = error_type.__name__
            fields["traceback"] = "".join(traceback.format_tb(trace))
        return json.dumps(fields, ensure_ascii=False)
