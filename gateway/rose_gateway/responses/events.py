"""The events of a response: a pure function of the request and of the job's log.

Whoever replays the log, on whichever replica and however often, gets the same events with the same
numbers:

    0 created, 1 queued (of a background response), in_progress, then for each item added, deltas
    and done, and at last completed, incomplete or failed

A response that was cancelled ends with `response.incomplete`, whose status says cancelled: OpenAI's
libraries know no event of that name.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from rose.protocol import (
    CancelledEvent,
    Event,
    FailedEvent,
    FinishedEvent,
    TokenEvent,
    error_of,
)
from rose_gateway.access.sealing import Seal
from rose_gateway.answers.numbered_frames import NumberedFrames
from rose_gateway.answers.rendering import left_out_of
from rose_gateway.errors import parameter
from rose_gateway.requests.parsing import compact, json_string
from rose_gateway.responses.output import (
    CallItem,
    Change,
    Closed,
    Grown,
    ItemStatus,
    LogprobEntry,
    MessageItem,
    Opened,
    Output,
    OutputItem,
    TextItem,
)
from rose_gateway.responses.parameters import ResponseParameters

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

_pack = msgspec.msgpack.Encoder().encode

_TEXT_DELTA = "response.output_text.delta"

#: What the request itself has brought about, and OpenAI's codes for it. The list of its document
#: lacks the first; its server sends that one, and agents compact a conversation by it.
REQUEST_FAULTS = {
    "prompt_too_long": "context_length_exceeded",
    "invalid_parameter": "invalid_prompt",
}


def response_id(job_id: str) -> str:
    return f"resp_{job_id}"


def job_id_of(response_id: str) -> str:
    """The id of the job, empty where this is the id of no response."""
    prefix, _, job_id = response_id.partition("_")
    return job_id if prefix == "resp" else ""


class ResponseEvents(NumberedFrames):
    """Makes the frames of an event stream from the events of a log, in their order."""

    def __init__(
        self,
        parameters: ResponseParameters,
        job_id: str,
        created_at: int,
        *,
        starting_after: int | None = -1,
        logprobs: LogprobEntry | None = None,
        seal: Seal | None = None,
    ) -> None:
        """`created_at`: Unix seconds. `starting_after`: as `NumberedFrames` has it. `logprobs`:
        shows a token's id and its TokenLogprob, packed. `seal`: seals thoughts."""
        super().__init__(starting_after)
        self._parameters = parameters
        self._id = response_id(job_id)
        self._warnings: dict[str, Any] = {}
        self._created_at = created_at
        self._logprobs = logprobs
        self._output = Output(parameters, job_id, logprobs, seal)
        self._begun = self._in_progress = False
        self._delta_of: object = None
        self._delta_prefix = ""
        # Most tokens are more text of an only message, which takes no parser.
        self._is_plain = parameters.form.is_plain and logprobs is None
        self._message: MessageItem | None = None
        self.ended: dict[str, Any] | None = None
        """the response as it ended"""

    @property
    def last_number(self) -> int:
        """Of the events that the reader has, -1 at first."""
        return max(self._number - 1, -1 if self._after is None else self._after)

    def begin(self) -> bytes:
        """What comes before anything is logged. Later calls give nothing."""
        if not self._begun:
            self._begun = True
            waits = self._parameters.background
            status: ResponseStatus = "queued" if waits else "in_progress"
            self._lifecycle("response.created", self.response(status))
            if waits:
                self._lifecycle("response.queued", self.response(status))
            else:
                self._progress()
        return self._taken()

    def feed(self, event: Event, ended_at: int | None = None) -> bytes:
        """The frames of the next event of the log. `ended_at`: Unix seconds, where it completes the
        response."""
        if isinstance(event, TokenEvent):
            if self._message is not None:
                return self._text(self._message, event.text)
            if not self._in_progress:
                self._progress()
            self._show(self._added(event))
        else:
            self._finish(event, ended_at)
        return self._taken()

    def done(self) -> bytes:
        """The last frame of a stream. It has the number after the last event's, by which a reader
        who has it is known."""
        if not self._wanted():
            return b""
        return f"id: {self._number - 1}\ndata: [DONE]\n\n".encode()

    def response(self, status: ResponseStatus, **settled: Any) -> dict[str, Any]:
        """The response object with what its output is so far."""
        open_item: ItemStatus = "in_progress" if status in _GOING_ON else "incomplete"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "output": self._output.shown(open_item),
            "usage": None,
            **self._parameters.shown,
            **self._warnings,
            **settled,
        }

    def _text(self, message: MessageItem, text: str) -> bytes:
        """The frame of more text of the one message that the output is."""
        if not text:
            return b""
        message.grow(text)
        return self._delta(text, _NO_LOGPROBS).encode("utf-8", "replace") if self._wanted() else b""

    def _added(self, event: TokenEvent) -> list[Change]:
        if event.logprobs is None or self._logprobs is None:
            return self._output.add(event)
        tokens = zip(event.token_ids, event.logprobs, strict=True)
        return self._output.add(event, [_pack(token) for token in tokens])

    def _progress(self) -> None:
        self._in_progress = True
        self._lifecycle("response.in_progress", self.response("in_progress"))

    def _finish(self, event: Event, ended_at: int | None) -> None:
        if isinstance(event, FinishedEvent):
            if not self._in_progress:
                self._progress()
            ended = event.reason != "length"
            self._show(self._output.finish(complete=ended, cut=event.reason != "eos"))
            usage = _usage(event, self._output.thought_tokens)
            if left_out := left_out_of(event):
                known = self._parameters.shown.get("warnings", ())
                self._warnings = {"warnings": [*known, *left_out]}
            if ended and not self._output.cut_call:
                self._end("completed", usage=usage, completed_at=ended_at)
            else:
                # OpenAI has no word for a call that a stop cut off.
                details = {"reason": None if ended else "max_output_tokens"}
                self._end("incomplete", usage=usage, incomplete_details=details)
            return
        self._show(self._output.finish(complete=False, cut=True))
        if isinstance(event, FailedEvent):
            self._end("failed", error=_error(event, self._parameters))
        elif isinstance(event, CancelledEvent):
            self._end("cancelled")

    def _end(self, status: ResponseStatus, **settled: Any) -> None:
        self.ended = self.response(status, **settled)
        name = "incomplete" if status == "cancelled" else status
        self._lifecycle(f"response.{name}", self.ended)

    # Frames

    def _event(self, kind: str, fields: dict[str, Any]) -> None:
        """Call it for events that are wanted."""
        number = self._number - 1
        data = compact({"type": kind, "sequence_number": number, **fields})
        self._frames.append(f"id: {number}\nevent: {kind}\ndata: {data}\n\n")

    def _lifecycle(self, kind: str, response: dict[str, Any]) -> None:
        if self._wanted():
            self._event(kind, {"response": response})

    def _show(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, Grown):
                self._grown(change)
            elif isinstance(change, Opened):
                self._opened(change)
            else:
                self._closed(change)

    def _opened(self, change: Opened) -> None:
        index, item = change
        if self._wanted():
            self._event("response.output_item.added", {"output_index": index, "item": item.begun()})
        if not isinstance(item, CallItem) and self._wanted():
            empty = type(item)("")
            self._event("response.content_part.added", self._of_part(index, item, empty))

    def _grown(self, change: Grown) -> None:
        """Most events are these: all but the text and the number is made once for an item."""
        index, item, delta, logprobs = change
        if self._delta_of is not item:
            self._delta_of, self._delta_prefix = item, _delta_prefix(index, item)
            if self._is_plain and isinstance(item, MessageItem):
                self._message = item
        if not self._wanted():
            return
        more = ""
        if isinstance(item, MessageItem):
            entries = [self._logprobs(packed) for packed in logprobs] if self._logprobs else []
            more = f',"logprobs":{compact(entries)}' if entries else _NO_LOGPROBS
        self._frames.append(self._delta(delta, more))

    def _delta(self, text: str, more: str) -> str:
        number = self._number - 1
        return f'id: {number}{self._delta_prefix}{number},"delta":{json_string(text)}{more}}}\n\n'

    def _closed(self, change: Closed) -> None:
        index, item, status = change
        where: dict[str, Any] = {"item_id": item.id, "output_index": index}
        if not isinstance(item, CallItem):
            if self._wanted():
                kind = "response.reasoning_text.done"
                text: dict[str, Any] = {"text": item.text}
                if isinstance(item, MessageItem):
                    kind = "response.output_text.done"
                    text |= {"logprobs": item.logprobs}
                self._event(kind, {**where, "content_index": 0, **text})
            if self._wanted():
                self._event("response.content_part.done", self._of_part(index, item, item))
        elif item.done_event and self._wanted():
            self._event(item.done_event, {**where, **item.done()})
        if self._wanted():
            shown = {"output_index": index, "item": item.shown(status)}
            self._event("response.output_item.done", shown)

    def _of_part(self, index: int, item: TextItem, shown: TextItem) -> dict[str, Any]:
        return {
            "item_id": item.id,
            "output_index": index,
            "content_index": 0,
            "part": shown.part(),
        }


_NO_LOGPROBS = ',"logprobs":[]'
_GOING_ON = ("queued", "in_progress")


def _delta_prefix(index: int, item: OutputItem) -> str:
    """Of a delta's frame, what stands between its two numbers."""
    is_text = not isinstance(item, CallItem)
    kind = _TEXT_DELTA if isinstance(item, MessageItem) else item.delta_event
    where = f'"item_id":{json_string(item.id)},"output_index":{index}'
    part = ',"content_index":0' if is_text else ""
    return f'\nevent: {kind}\ndata: {{"type":"{kind}",{where}{part},"sequence_number":'


def _usage(event: FinishedEvent, thought_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": event.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": event.cached_tokens or 0,
            "cache_write_tokens": 0,
        },
        "output_tokens": event.index,
        "output_tokens_details": {"reasoning_tokens": thought_tokens},
        "total_tokens": event.prompt_tokens + event.index,
    }


def _error(event: FailedEvent, parameters: ResponseParameters) -> dict[str, Any]:
    """`code` is one of OpenAI's; `type` is this project's own, as in `rose.errors`."""
    code = REQUEST_FAULTS.get(event.code, "server_error")
    said = parameters.form.in_tools(event.message) if event.code == "invalid_parameter" else None
    param = "tools" if said else parameter(error_of(event, ""), "response", parameters.grammar)
    return {"code": code, "message": said or event.message, "param": param, "type": event.code}


def error_frame(number: int, message: str, code: str | None, param: str | None = None) -> bytes:
    """The stream breaks off, though the response may go on. It carries the number of the event
    before it: whoever resumes after that one misses nothing."""
    fields = {"type": "error", "code": code, "message": message, "param": param}
    data = compact({**fields, "sequence_number": max(number, 0)})
    return f"event: error\ndata: {data}\n\n".encode("utf-8", "replace")
