"""What a request has asked for and does not get, though it is served: told with its answer.

A warning stands in the record of the request, so whoever reads the answer again reads it too. It is
shown in `warnings` of the answer and in a header.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

HEADER = "x-rose-warning"
_MAX_HEADER = 2000
_MAX_REASONS = 600


class AnswerWarning(NamedTuple):
    param: str
    """the path of the field"""
    message: str
    """begins with the field; without semicolons"""
    code: str = "no_effect"

    def shown(self) -> dict[str, Any]:
        """As `ShownWarning`."""
        return {"code": self.code, "param": self.param, "message": self.message}


#: Of schemas that calls or texts are not held to, or not to all of them.
NOT_FOLLOWED = "schema_not_followed"


def not_followed(reasons: Sequence[str], param: str = "tools") -> list[dict[str, Any]]:
    """As a record keeps it; empty where there are none. `param`: the field with the schemas, of
    calls or of the text."""
    if not reasons:
        return []
    what = "calls are not held to all of their schemas"
    if param != "tools":
        what = "the text is not held to all of its schema"
    text = ", ".join(reasons).replace(";", ",")
    return [AnswerWarning(param, f"{param}: {what}: {text[:_MAX_REASONS]}", NOT_FOLLOWED).shown()]


class ShownWarning(BaseModel):
    """What has no effect, or is not followed; only where there is something."""

    code: Literal["no_effect", "schema_not_followed"]
    param: str
    message: str


def header_of(shown: Sequence[dict[str, Any]]) -> str:
    """The messages, separated by semicolons: printable ASCII, as a header must be."""
    text = "; ".join(warning["message"] for warning in shown)
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:_MAX_HEADER]
