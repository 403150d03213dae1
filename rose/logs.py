"""The log of a service: lines for people, or JSON for machines. Neither holds prompts or outputs.

A JSON line has `time`, `level`, `logger`, `message` and the fields of the service, `job` if it
concerns one (`extra={"job": id}`), and the fields that the call adds (`extra={"fields":
{...}}`). An exception is logged with its type and traceback, but without its text, which may
quote a prompt.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure(
    level: str, form: str, fields: Mapping[str, str], *, exception_text: bool = True
) -> None:
    """Set up logging for the process, to standard error.

    `form`: text or json. `fields`: what every JSON line has. `exception_text`: False for a service
    whose exceptions may quote what others have sent; lines for people then lack it, too.
    """
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter(fields))
    else:
        handler.setFormatter(logging.Formatter(_TEXT) if exception_text else ReticentFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


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
