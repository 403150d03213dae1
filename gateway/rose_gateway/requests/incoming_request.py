"""A request for text, from HTTP or from a batch: its body, its caller and what answers it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from rose.protocol import Priority
from rose_gateway.access.caller import Caller
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import Unsupported, parse
from rose_gateway.requests.request_fields import priority_of
from rose_gateway.services import Services

Model = TypeVar("Model", bound=BaseModel)

#: Tiers that ask for no more than the lowest priority gives.
_MODEST_TIERS = (None, "auto", "default", "flex")


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingRequest:
    services: Services
    caller: Caller
    body: bytes | Mapping[str, Any]
    """the JSON text, or the object that it says"""
    sha256: str
    """of the bytes that a repeat with the same idempotency key must have, in hexadecimal"""
    idempotency_key: str | None = None
    """one that no other caller can say: as `callers_key` or `lines_key` make it"""
    priority: Priority | None = None
    """of a batch; None: what the body's service_tier asks for"""

    def parsed(self, model: type[Model], unsupported: Unsupported | None = None) -> Model:
        """Raises: BadRequest"""
        nesting = self.services.settings.max_nesting
        return parse(model, self.body, unsupported, max_nesting=nesting)

    def priority_of(self, tier: str | None) -> Priority:
        """Raises: BadRequest: a batch is not served before others."""
        if self.priority is None:
            return priority_of(tier, self.caller)
        if tier not in _MODEST_TIERS:
            raise BadRequest(
                f"service_tier: the lines of a batch have the priority {self.priority.value}: "
                "leave it out, or send the request by itself",
                "service_tier",
            )
        return self.priority


def callers_key(caller: Caller, given: str) -> str:
    """For the Idempotency-Key that a caller has sent."""
    return f"{caller.key_id}\0{given}"


def lines_key(caller: Caller, batch_id: str, number: int) -> str:
    """For a line of a batch. No `callers_key` begins so: a key's id is empty or hexadecimal."""
    return f"line\0{caller.key_id}\0{batch_id}:{number}"
