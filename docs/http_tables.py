"""The tables of HTTP: routes, what each endpoint takes and refuses, errors."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rose_gateway.app import create_app
from rose_gateway.chat import schema as chat
from rose_gateway.completions import schema as completions
from rose_gateway.embeddings import schema as embeddings
from rose_gateway.http.error_answers import ERROR_RESPONSES as ERRORS
from rose_gateway.messages import schema as messages
from rose_gateway.openapi import inlined
from rose_gateway.requests.other_servers import OF_OTHER_SERVERS
from rose_gateway.requests.parsing import Unsupported
from rose_gateway.requests.sampling import DetailedSamplingRequest, RequestModel
from rose_gateway.requests.thinking import ThinkingRequest
from rose_gateway.responses import schema as responses
from rose_gateway.routes import batches
from rose_gateway.settings import GatewaySettings

_METHODS = ("get", "head", "post", "put", "patch", "delete")

#: For operators; clients do not need them.
_UNDOCUMENTED = {"/healthz", "/readyz"}


def reference() -> dict[str, str]:
    """Each table of docs/http.md by the name of its marks."""
    sampling = DetailedSamplingRequest.model_fields
    shared = {*sampling, *ThinkingRequest.model_fields}
    return {
        "routes": _routes(),
        "sampling": _parameters(DetailedSamplingRequest, without=()),
        "responses": _parameters(responses.CreateResponse, without=shared),
        "chat": _parameters(chat.ChatRequest, without=shared),
        "messages": _parameters(messages.CreateMessage, without=shared - {"output_config"}),
        "thinking": _parameters(ThinkingRequest, without=()),
        "batches": _parameters(batches.CreateBatch, without=()),
        "completions": _parameters(completions.CompletionRequest, without=shared),
        "embeddings": _parameters(embeddings.EmbeddingsRequest, without=()),
        "embed": _parameters(embeddings.EmbedRequest, without=()),
        "rerank": _parameters(embeddings.RerankRequest, without=()),
        "score": _parameters(embeddings.ScoreRequest, without=()),
    }


def errors() -> dict[str, str]:
    """Each table of docs/http-errors.md by the name of its marks."""
    return {
        "errors": _errors(),
        "refused": _refused(
            {
                "responses": responses.UNSUPPORTED,
                "chat": chat.UNSUPPORTED,
                "completions": completions.UNSUPPORTED,
                "messages": messages.UNSUPPORTED,
                "all": OF_OTHER_SERVERS,
            }
        ),
    }


def routes() -> Iterator[tuple[str, str, str]]:
    """Method, path and summary of each route of the OpenAPI document."""
    paths = create_app(GatewaySettings()).openapi()["paths"]
    for path, methods in paths.items():
        for method in _METHODS:
            if method in methods and path not in _UNDOCUMENTED:
                yield method.upper(), path, methods[method]["summary"]


def _routes() -> str:
    rows = (f"| `{method} {path}` | {summary} |" for method, path, summary in routes())
    return _table("| request | what it does |\n| --- | --- |", rows)


def _parameters(model: type[RequestModel], without: Iterable[str]) -> str:
    schema = inlined(model)
    required = set(schema.get("required", ()))
    rows = (
        f"| `{name}`{' (required)' if name in required else ''} | {_values(shape)} "
        f"| {_cell(shape.get('description', ''))} |"
        for name, shape in schema["properties"].items()
        if name not in without
    )
    return _table("| parameter | values | notes |\n| --- | --- | --- |", rows)


def _refused(endpoints: Mapping[str, Unsupported]) -> str:
    rows = (
        f"| {endpoint} | `{name}` | {', '.join(map(_code, accepted))} | {_cell(reason)} |"
        for endpoint, unsupported in endpoints.items()
        for name, (accepted, reason) in sorted(unsupported.items())
        if endpoint == "all" or name not in OF_OTHER_SERVERS
    )
    head = "| endpoint | parameter | accepted | reason |\n| --- | --- | --- | --- |"
    return _table(head, rows)


def _errors() -> str:
    rows = (f"| {status} | {_cell(answer['description'])} |" for status, answer in ERRORS.items())
    return _table("| status | meaning |\n| --- | --- |", rows)


def _table(head: str, rows: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in (head, *rows))


def _values(shape: Mapping[str, Any]) -> str:
    """A JSON schema in a few words."""
    options = shape.get("anyOf") or shape.get("oneOf")
    if options:
        words = [_values(option) for option in options if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    if "const" in shape:
        return _code(shape["const"])
    if "enum" in shape:
        return ", ".join(map(_code, shape["enum"]))
    kind = str(shape.get("type", "any"))
    if kind == "array":
        return f"array of {_most(shape, 'Items')}{_plain(shape.get('items', {}))}"
    if kind == "string":
        most = _most(shape, "Length")
        return f"string of {most}characters" if most else kind
    return kind + _range(shape)


def _plain(item: Mapping[str, Any]) -> str:
    """The types of the items of an array."""
    options = item.get("anyOf") or item.get("oneOf") or [item]
    kinds = [str(option.get("type", "object")) for option in options]
    return " or ".join(dict.fromkeys(f"{kind}s" for kind in kinds))


def _most(shape: Mapping[str, Any], name: str) -> str:
    most = shape.get(f"max{name}")
    return "" if most is None else f"up to {most:,} "


def _range(shape: Mapping[str, Any]) -> str:
    """Without bounds that only keep an integer within 32 or 64 bits."""
    low, high = shape.get("minimum"), shape.get("maximum", shape.get("exclusiveMaximum"))
    if high is not None and high < 2**31 - 1:
        return f" {low or 0:,} to {int(high):,}"
    return f" from {low}" if low is not None and low > -(2**31) else ""


def _code(value: Any) -> str:
    return f"`{json.dumps(value)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
