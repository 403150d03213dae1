"""Writes the tables of settings, chart values, sampling parameters and HTTP.

    python -m docs.reference [--check]

`--check` only compares.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from docs import http_tables
from rose.sampling import PARAMETERS, Parameter
from rose.settings import QueueSettings
from rose_gateway.settings import GatewaySettings
from rose_producer.settings import ProducerSettings
from rose_worker.settings import WorkerSettings

_DOCS = Path(__file__).parent
_CHART = _DOCS.parent / "deploy" / "helm"


def settings_page(page: str) -> str:
    """The page with its tables as the code has them."""
    shared = QueueSettings.model_fields
    tables = (
        _table("Client and worker", shared.items()),
        _table("Client", _own(ProducerSettings.model_fields, shared)),
        _table("Worker", _own(WorkerSettings.model_fields, shared)),
        _table(
            "Gateway",
            _own(GatewaySettings.model_fields, ProducerSettings.model_fields),
            prefix="ROSE_GATEWAY_",
        ),
    )
    return _between_marks(page, "settings", "\n".join(tables))


def protocol_page(page: str) -> str:
    """The page with its table of sampling parameters as the schema has them."""
    rows = "".join(
        f"| `{parameter.name}` | {_type(parameter)} | {_sampling_default(parameter)} |"
        f" {parameter.meaning} |\n"
        for parameter in PARAMETERS
    )
    head = "| in `sampling` | type | default | meaning |\n| --- | --- | --- | --- |\n"
    return _between_marks(page, "sampling", head + rows)


def http_page(page: str) -> str:
    """The page with its tables as the routes and schemas have them."""
    return _with_tables(page, http_tables.reference())


def http_errors_page(page: str) -> str:
    """The page with its tables of errors and refused parameters as the gateway has them."""
    return _with_tables(page, http_tables.errors())


def helm_page(page: str) -> str:
    """The page with the table of the chart's values, as values.yaml and its schema have them."""
    defaults = yaml.safe_load((_CHART / "values.yaml").read_text())
    schema = json.loads((_CHART / "values.schema.json").read_text())
    rows = "".join(
        f"| `{name}` | `{json.dumps(default)}` | {description} |\n"
        for name, default, description in chart_values(defaults, schema)
    )
    head = "| value | default | meaning |\n| --- | --- | --- |\n"
    return _between_marks(page, "values", head + rows)


def chart_values(
    defaults: Mapping[str, Any], schema: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, str]]:
    """Path, default and description of each value. Raises KeyError for one that has no schema."""
    for name, default in defaults.items():
        described = schema["properties"][name]
        if "description" in described:
            yield prefix + name, default, described["description"]
        else:
            yield from chart_values(default, described, f"{prefix}{name}.")


#: The pages that have tables from the code, and what writes them.
PAGES = {
    _DOCS / "helm.md": helm_page,
    _DOCS / "settings.md": settings_page,
    _DOCS / "protocol.md": protocol_page,
    _DOCS / "http.md": http_page,
    _DOCS / "http-errors.md": http_errors_page,
}


def _with_tables(page: str, tables: Mapping[str, str]) -> str:
    for name, table in tables.items():
        page = _between_marks(page, name, table)
    return page


def _between_marks(page: str, name: str, text: str) -> str:
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n{text}{end}{tail}"


def _type(parameter: Parameter) -> str:
    name = {bool: "boolean", int: "integer", float: "number", str: "text", tuple: "pair"}
    if parameter.takes_several:
        return f"array of {name[parameter.type]}s"
    return f"{name[parameter.type]} {parameter.range}".strip()


def _sampling_default(parameter: Parameter) -> str:
    if parameter.default in (None, ()):
        return ""
    return f"`{json.dumps(parameter.default)}`"


def _own(
    fields: dict[str, FieldInfo], shared: dict[str, FieldInfo]
) -> Iterable[tuple[str, FieldInfo]]:
    return ((name, field) for name, field in fields.items() if name not in shared)


def _table(title: str, fields: Iterable[tuple[str, FieldInfo]], prefix: str = "ROSE_") -> str:
    rows = "".join(
        f"| `{prefix}{name.upper()}` | {_default(field)} | {field.description} |\n"
        for name, field in fields
    )
    return f"## {title}\n\n| variable | default | meaning |\n| --- | --- | --- |\n{rows}"


def _default(field: FieldInfo) -> str:
    default = field.default
    if isinstance(default, SecretStr):
        default = default.get_secret_value()
    return "" if default is None else f"`{default}`"


def main() -> int:
    stale = False
    for path, write in PAGES.items():
        page = path.read_text()
        written = write(page)
        if "--check" not in sys.argv[1:]:
            path.write_text(written)
        elif written != page:
            sys.stderr.write(f"docs/{path.name} is stale: run `make reference`\n")
            stale = True
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
