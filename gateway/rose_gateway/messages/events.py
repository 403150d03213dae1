"""The events of a message: a pure function of the request and of the job's log.

    message_start, then for each block content_block_start, deltas and content_block_stop,
    then message_delta and message_stop; or error, wherever the job fails

Whoever replays the log, on whichever replica and however often, gets the same events with the same
numbers, which are their `id:` lines.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json

from rose.formats.parts import Arguments, CallBegun, CallCut, CallEnded, Part, Text, Thought
from rose.protocol import FinishedEvent, TokenEvent
from rose_gateway.access.sealing import Seal
from rose_gateway.answers.numbered_frames import NumberedFrames
from rose_gateway.answers.rendering import left_out_of
from rose_gateway.answers.token_parser import TokenParser
from rose_gateway.errors import ApiError
from rose_gateway.messages.schema import MessageParameters, StopReason
from rose_gateway.requests.parsing import compact, json_string


def message_id(job_id: str) -> str:
    return f"msg_{job_id}"


class _Kind(NamedTuple):
    """Of a content block: the field that grows, and its deltas."""

    field: str
    delta: str
    delta_field: str


_KINDS = {
    "text": _Kind("text", "text_delta", "text"),
    "thinking": _Kind("thinking", "thinking_delta", "thinking"),
    "tool_use": _Kind("input", "input_json_delta", "partial_json"),
}


class _Block:
    def __init__(self, index: int, kind: str, **fields: Any) -> None:
        self.index = index
        self.kind = _KINDS[kind]
        self.fields = {"type": kind, **fields}
        self.pieces: list[str] = []

    def begun(self) -> dict[str, Any]:
        """As content_block_start shows it."""
        return {**self.fields, self.kind.field: {} if self.kind.field == "input" else ""}

    def shown(self) -> dict[str, Any]:
        text = "".join(self.pieces)
        return {
            **self.fields,
            self.kind.field: _input(text) if self.kind.field == "input" else text,
        }


class MessageEvents(NumberedFrames):
    """Makes the frames of an event stream from the events of a log, in their order."""

    def __init__(
        self,
        parameters: MessageParameters,
        job_id: str,
        *,
        after: int | None = -1,
        warnings: Sequence[dict[str, Any]] = (),
        seal: Seal | None = None,
    ) -> None:
        """`warnings`: as the message shows them. `seal`: signs thoughts."""
        super().__init__(after)
        self._seal = seal
        self._warnings = {"warnings": list(warnings)} if warnings else {}
        self._parameters = parameters
        self._job_id = job_id
        self._parser = TokenParser(parameters.form.parser())
        self._blocks: list[_Block] = []
        self._open: _Block | None = None
        self._calls = 0
        self._cut = False
        self._delta_head = ""
        # Most tokens are more text of an only block, which takes no parser.
        self._is_plain = parameters.form.is_plain
        self._text: _Block | None = None
        self.message: dict[str, Any] | None = None
        """the whole, once it has ended"""

    def begin(self) -> bytes:
        """Before any event of the log."""
        start = self._shown([], None, None, self._usage(None))
        self._event("message_start", {"message": start})
        return self._taken()

    def feed(self, event: TokenEvent | FinishedEvent) -> bytes:
        if isinstance(event, FinishedEvent):
            self._show(self._parser.finish(cut=event.reason != "eos"))
            self._end(event)
        elif self._text is not None:
            if event.text:
                self._grow(self._text, event.text)
        else:
            self._show(self._parser.feed(event))
            if self._is_plain:
                self._text = self._open
        return self._taken()

    def failed(self, error: ApiError) -> bytes:
        """The last frame of a job that has failed."""
        self._event("error", {"error": error.anthropic_body()["error"]})
        return self._taken()

    # Blocks

    def _show(self, parts: Sequence[Part]) -> None:
        for part in parts:
            match part:
                case Text(text):
                    if not self._is_open("text"):
                        self._begin_block("text")
                    self._grow_open(text)
                case Thought(text):
                    if not self._is_open("thinking"):
                        self._begin_block("thinking", signature="")
                    self._grow_open(text)
                case CallBegun(_, name):
                    call_id = f"toolu_{self._job_id}_{self._calls}"
                    self._calls += 1
                    self._begin_block("tool_use", id=call_id, name=name)
                case Arguments(_, text):
                    self._grow_open(text)
                case CallEnded(_, complete):
                    self._cut = not complete
                    self._close()
                case CallCut():
                    self._cut = True

    def _is_open(self, kind: str) -> bool:
        return self._open is not None and self._open.kind is _KINDS[kind]

    def _begin_block(self, kind: str, **fields: Any) -> None:
        self._close()
        block = self._open = _Block(len(self._blocks), kind, **fields)
        self._blocks.append(block)
        head = f'"type":"content_block_delta","index":{block.index}'
        delta = f'"delta":{{"type":"{block.kind.delta}","{block.kind.delta_field}":'
        self._delta_head = f"\nevent: content_block_delta\ndata: {{{head},{delta}"
        self._event("content_block_start", {"index": block.index, "content_block": block.begun()})

    def _grow_open(self, text: str) -> None:
        if self._open is not None and text:
            self._grow(self._open, text)

    def _grow(self, block: _Block, text: str) -> None:
        block.pieces.append(text)
        if self._parameters.omits_thoughts and block.kind is _KINDS["thinking"]:
            return
        if self._wanted():
            self._frames.append(
                f"id: {self._number - 1}{self._delta_head}{json_string(text)}}}}}\n\n"
            )

    def _close(self) -> None:
        block, self._open = self._open, None
        if block is None:
            return
        if block.kind is _KINDS["thinking"]:
            # Whoever sends it back has shown whose thought it is, and what it says.
            signature = self._seal.closed("".join(block.pieces)) if self._seal else ""
            block.fields["signature"] = signature
            if self._parameters.omits_thoughts:
                block.pieces.clear()
            delta = {"type": "signature_delta", "signature": signature}
            self._event("content_block_delta", {"index": block.index, "delta": delta})
        self._event("content_block_stop", {"index": block.index})

    # The message

    def _end(self, event: FinishedEvent) -> None:
        self._close()
        reason, sequence = self._stop(event)
        usage = self._usage(event)
        if left_out := left_out_of(event):
            self._warnings = {"warnings": [*self._warnings.get("warnings", ()), *left_out]}
        content = [block.shown() for block in self._blocks]
        self.message = self._shown(content, reason, sequence, usage)
        del usage["service_tier"]
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        more = self._warnings if left_out else {}
        self._event("message_delta", {"delta": delta, "usage": usage, **more})
        self._event("message_stop", {})

    def _stop(self, event: FinishedEvent) -> tuple[StopReason, str | None]:
        if event.reason == "length":
            return "max_tokens", None
        if event.stop is not None and event.stop in self._parameters.stop_sequences:
            return "stop_sequence", event.stop
        return ("tool_use" if self._calls and not self._cut else "end_turn"), None

    def _usage(self, event: FinishedEvent | None) -> dict[str, Any]:
        """How long the prompt is, nobody knows before the end."""
        cached = (event.cached_tokens or 0) if event else 0
        return {
            "input_tokens": event.prompt_tokens - cached if event else 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": event.index if event else 0,
            "output_tokens_details": {"thinking_tokens": self._parser.thought_tokens},
            "service_tier": self._parameters.tier,
        }

    def _shown(
        self,
        content: list[dict[str, Any]],
        reason: StopReason | None,
        sequence: str | None,
        usage: dict[str, Any],
    ) -> dict[str, Any]:
        return {
            "id": message_id(self._job_id),
            "type": "message",
            "role": "assistant",
            "model": self._parameters.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": {**usage},
            **self._warnings,
        }

    # Frames

    def _event(self, kind: str, fields: dict[str, Any]) -> None:
        if self._wanted():
            data = compact({"type": kind, **fields})
            self._frames.append(f"id: {self._number - 1}\nevent: {kind}\ndata: {data}\n\n")


def _input(arguments: str) -> dict[str, Any]:
    """Of a call that may have been cut off, as far as it can be read, which is what Anthropic's
    libraries make of a stream."""
    try:
        value = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return {"INVALID_JSON": arguments} if arguments.strip() else {}
    return value if isinstance(value, dict) else {"INVALID_JSON": arguments}


#: What is written while nothing comes.
PING = b'event: ping\ndata: {"type": "ping"}\n\n'


def error_frame(error: ApiError) -> bytes:
    """The stream breaks off, though the job may go on. It has no number: whoever resumes after the
    event before it misses nothing."""
    return f"event: error\ndata: {compact(error.anthropic_body())}\n\n".encode("utf-8", "replace")
