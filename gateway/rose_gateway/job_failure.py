"""What the failure of a job means to whoever asked for it."""

from __future__ import annotations

from rose.protocol import CancelledEvent, FailedEvent, error_of
from rose_gateway.errors import PROMPTS, ApiError, api_error
from rose_gateway.record import Face
from rose_gateway.ticket import Ticket

#: How the worker's refusals of a prompt begin.
_OF_PROMPTS = ("the prompt ", "prompt holds ", "the chat template refused ")
_OF_BIAS = "logit_bias "


def failure(event: FailedEvent | CancelledEvent, ticket: Ticket, choice: int = 0) -> ApiError:
    """What the last event of a failed choice means to a client."""
    error = api_error(error_of(event, ticket.jobs[choice].id))
    if error.status == 400 and isinstance(event, FailedEvent) and ticket.record is not None:
        error.param = _parameter(event.message, ticket.record.face)
    return error


def _parameter(message: str, face: Face) -> str | None:
    """None for a grammar: several parameters may say what the text must be."""
    if message.startswith(_OF_PROMPTS):
        return PROMPTS[face]
    return "logit_bias" if message.startswith(_OF_BIAS) else None
