"""The page and its files: static, the same for everybody, and nothing from elsewhere.

What the page shows it asks of `/v1` as any other client does, with the key that its user types.
"""

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated

from fastapi import APIRouter, Header, Path
from starlette.responses import Response

from rose_gateway.errors import ApiError

router = APIRouter(include_in_schema=False)

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
#: Scripts and styles are files of this server, it is asked and nobody else, and no text of a model
#: can become markup: the page makes none from strings.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
_IfNoneMatch = Annotated[str, Header()]


@router.head("/", include_in_schema=False)
@router.get("/")
async def page(if_none_match: _IfNoneMatch = "") -> Response:
    return _file("index.html", if_none_match)


@router.get("/page/{name:path}")
async def part(name: Annotated[str, Path()], if_none_match: _IfNoneMatch = "") -> Response:
    if name not in _contents():
        raise ApiError(404, "the page has no such part", code="not_found")
    return _file(name, if_none_match)


def _file(name: str, known: str) -> Response:
    """`known`: the tag of what the browser has."""
    content, tag = _contents()[name]
    headers = {**_HEADERS, "etag": tag}
    if known == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=_TYPES[name.rpartition(".")[2]])


@cache
def _contents() -> dict[str, tuple[bytes, str]]:
    """Each file with its tag, by its path below `static`."""
    read = dict(_files(files(__package__).joinpath("static")))
    return {
        name: (content, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
        for name, content in read.items()
        if name.rpartition(".")[2] in _TYPES
    }


def _files(folder: Traversable, above: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{above}{entry.name}/")
        else:
            yield f"{above}{entry.name}", entry.read_bytes()
