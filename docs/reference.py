"""Writes the tables of docs/settings.md: `python -m docs.reference`; `--check` only compares."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from rose.settings import QueueSettings
from rose_producer.settings import ProducerSettings
from rose_worker.settings import WorkerSettings

PAGE = Path(__file__).with_name("settings.md")
_BEGIN, _END = "<!-- settings: begin -->", "<!-- settings: end -->"


def settings_page(page: str) -> str:
    """The page with its tables as the code has them."""
    head, _, rest = page.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    shared = QueueSettings.model_fields
    tables = (
        _table("Client and worker", shared.items()),
        _table("Client", _own(ProducerSettings.model_fields, shared)),
        _table("Worker", _own(WorkerSettings.model_fields, shared)),
    )
    return head + _BEGIN + "\n" + "\n".join(tables) + _END + tail


def _own(
    fields: dict[str, FieldInfo], shared: dict[str, FieldInfo]
) -> Iterable[tuple[str, FieldInfo]]:
    return ((name, field) for name, field in fields.items() if name not in shared)


def _table(title: str, fields: Iterable[tuple[str, FieldInfo]]) -> str:
    rows = "".join(
        f"| `ROSE_{name.upper()}` | {_default(field)} | {field.description} |\n"
        for name, field in fields
    )
    return f"## {title}\n\n| variable | default | meaning |\n| --- | --- | --- |\n{rows}"


def _default(field: FieldInfo) -> str:
    default = field.default
    if isinstance(default, SecretStr):
        default = default.get_secret_value()
    return "" if default is None else f"`{default}`"


def main() -> int:
    page = PAGE.read_text()
    written = settings_page(page)
    if "--check" in sys.argv[1:]:
        if written != page:
            sys.stderr.write("docs/settings.md is stale: run `make reference`\n")
        return int(written != page)
    PAGE.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
