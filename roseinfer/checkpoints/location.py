"""Where transformers finds a model, and the arguments with which it reads it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from roseinfer.checkpoints.gguf import checkpoint as gguf
from roseinfer.checkpoints.gguf.families import find_layout
from roseinfer.checkpoints.gguf.header import Header, read_header
from roseinfer.checkpoints.gguf.layouts import Layout
from roseinfer.checkpoints.sources import gguf_file


@dataclass(frozen=True, slots=True)
class Location:
    """`folder` may be a name on the hub; `arguments` are transformers' own."""

    source: str
    """as the caller names it"""
    folder: str
    arguments: dict[str, str]
    header: Header | None = None
    """of a GGUF file"""
    layout: Layout | None = None
    """of a GGUF file that transformers is not to read"""


@contextmanager
def locate(source: str) -> Iterator[Location]:
    """Raises ModelNotFound and UnsupportedModel for a file that cannot be a model."""
    path = gguf_file(source)
    if path is None:
        yield Location(source, source, {})
        return
    header = read_header(path)
    with gguf.alone(path) as (folder, arguments):
        yield Location(source, folder, arguments, header, find_layout(header))
