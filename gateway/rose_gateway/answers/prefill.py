"""An answer that continues the last message, which is the assistant's."""

from collections.abc import Mapping, Sequence
from typing import Any

from rose.formats.registry import HARMONY
from rose_gateway.models.catalogue import ServedModel
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.sampling import constraints


def check_prefill(
    messages: Sequence[Mapping[str, Any]],
    model: ServedModel,
    sampling: Mapping[str, Any],
    param: str,
) -> None:
    """`messages`: of the job. `sampling`: what the request asks for. `param`: the path of the last
    message.

    Raises: BadRequest: there is nothing to continue, or what comes could not be read.
    """
    last = messages[-1]
    if last["role"] != "assistant" or not last["content"] or last.get("tool_calls"):
        raise BadRequest(
            f"{param}: an answer can continue a text of the assistant alone, without calls", param
        )
    if HARMONY in (model.reasoning_format, model.tool_format):
        raise BadRequest(
            f"{param}: this model writes in channels, and a message that is not whole has none: "
            "end with the user's message",
            param,
            code="unsupported_parameter",
        )
    if any(constraints(sampling)):
        raise BadRequest(
            f"{param}: a grammar says what the whole answer is, which so cannot continue a message",
            param,
            code="unsupported_parameter",
        )
