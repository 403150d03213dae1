"""What a request has asked for and does not get, though it is served: told with its answer.

A warning stands in the record of the request, so whoever reads the answer again reads it too. It is
shown in `warnings` of the answer and in a header.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

HEADER = "x-rose-warning"
_MAX_HEADER = 2000


class AnswerWarning(NamedTuple):
    param: str
    """the path of the field"""
    message: str
    """begins with the field; without semicolons"""
    code: str = "no_effect"

    def shown(self) -> dict[str, Any]:
        """As `ShownWarning`."""
        return {"code": self.code, "param": self.param, "message": self.message}


class ShownWarning(BaseModel):
    """What has no effect; only where there is something."""

    code: Literal["no_effect"]
    param: str
    message: str


def header_of(shown: Sequence[dict[str, Any]]) -> str:
    """The messages, separated by semicolons: printable ASCII, as a header must be."""
    text = "; ".join(warning["message"] for warning in shown)
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:_MAX_HEADER]
