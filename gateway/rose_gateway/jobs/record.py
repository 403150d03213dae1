"""What the gateway keeps beside a job, to show it again as what was requested."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from rose.errors import JobTooLarge, MalformedMessage

EndpointKind = Literal["response", "chat", "completion"]

#: What Redis keeps of one: rose.protocol.records has the same limit.
MAX_RECORD_BYTES = 1024 * 1024

_ENDPOINT_KINDS = ("response", "chat", "completion")
_VERSION = 1


def fields_of(record: Any) -> dict[str, Any]:
    """Of a data class, by name, and not copied: conversations are long."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


@dataclass(frozen=True, slots=True)
class Record:
    """How a job was requested.

    `request` holds what its endpoint needs to show the job again: JSON values only.
    """

    face: EndpointKind
    """the endpoint; stored, and shown by the API, under this name"""
    model: str
    """as the request named it"""
    body_sha256: str = ""
    """of the request's body, in hexadecimal: the same Idempotency-Key must bring the same body"""
    request: dict[str, Any] = field(default_factory=dict)
    choices: int = 1
    """n: jobs ID, ID.1, ID.2, ... answer one request"""
    store: bool = True
    """False: it cannot be retrieved, and is deleted once it has been delivered"""
    background: bool = False
    """it goes on although nobody listens"""

    def encode(self) -> bytes:
        """Raises: JobTooLarge"""
        versioned = {"v": _VERSION, **fields_of(self)}
        raw = json.dumps(versioned, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        encoded = raw.encode("utf-8", "surrogatepass")
        if len(encoded) > MAX_RECORD_BYTES:
            raise JobTooLarge(
                f"the request takes {len(encoded)} bytes to be kept with its conversation, the "
                f"limit is {MAX_RECORD_BYTES}: begin a new conversation or send less"
            )
        return encoded

    @classmethod
    def decode(cls, raw: bytes) -> Record:
        """Raises: MalformedMessage: it was not written by `encode`."""
        try:
            given = json.loads(raw.decode("utf-8", "surrogatepass"))
            if given.pop("v") != _VERSION or given["face"] not in _ENDPOINT_KINDS:
                raise MalformedMessage("the job's record is of another version of the gateway")
            return cls(**given)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise MalformedMessage("the job's record is not what the gateway writes") from None
