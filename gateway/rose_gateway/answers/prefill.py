"""An answer that continues the last message, which is the assistant's."""

from collections.abc import Mapping, Sequence
from typing import Any

from rose.formats.parts import CallBegun, CallCut
from rose.formats.registry import HARMONY, shown_prompt_end
from rose_gateway.models.catalogue import ServedModel
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.sampling import constraints
from rose_gateway.tools.tools import CallForm


def check_prefill(
    messages: Sequence[Mapping[str, Any]],
    model: ServedModel,
    sampling: Mapping[str, Any],
    form: CallForm,
    param: str,
) -> None:
    """`messages`: of the job. `sampling`: what the request asks for. `form`: how the answer is
    read. `param`: the path of the last message.

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
    if begun := _begun(last["content"], form):
        raise BadRequest(
            f"{param}: {begun} is begun in it, and what comes is read by itself: end before that",
            param,
            code="unsupported_parameter",
        )
    if any(constraints(sampling)):
        raise BadRequest(
            f"{param}: a grammar says what the whole answer is, which so cannot continue a message",
            param,
            code="unsupported_parameter",
        )


def _begun(text: str, form: CallForm) -> str:
    """What a text leaves open that an answer may have; "" for nothing. The opening of a thought
    alone belongs to the answer."""
    parser = form.parser()
    parts = parser.feed(text)
    if parser.thinking and not text.rstrip().endswith(shown_prompt_end(form.thoughts)):
        return "a thought"
    parts += parser.finish(cut=True)
    return "a call" if any(isinstance(part, CallBegun | CallCut) for part in parts) else ""
