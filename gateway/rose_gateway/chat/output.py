"""What one choice of a chat completion says, as its job's events come."""

from typing import Any, NamedTuple

from rose.protocol import FinishedEvent, TokenEvent
from rose_gateway.chat.parameters import ChatParameters
from rose_gateway.models.vocabulary import Vocabulary, chat_logprob
from rose_gateway.tools.call_parser import Arguments, CallBegun, CallCut, CallEnded, Part, Text


class Delta(NamedTuple):
    """What one event brings."""

    content: str = ""
    calls: list[dict[str, Any]] = []  # noqa: RUF012 - never changed
    """as `delta.tool_calls`: at most one entry a call"""
    logprobs: list[dict[str, Any]] = []  # noqa: RUF012 - never changed
    finish_reason: str | None = None


class ChoiceOutput:
    def __init__(self, parameters: ChatParameters, job_id: str, vocabulary: Vocabulary) -> None:
        """`job_id` is that of the choice's own job."""
        self._job_id = job_id
        self._parser = parameters.form.parser()
        self._names = vocabulary
        self._wants_logprobs = parameters.logprobs
        self._called = False
        self._is_cut = False

    def feed(self, event: TokenEvent | FinishedEvent) -> Delta:
        if isinstance(event, FinishedEvent):
            content, calls = self._read(self._parser.finish(cut=event.reason != "eos"))
            return Delta(content, calls, finish_reason=self._reason(event))
        content, calls = self._read(self._parser.feed(event.text) if event.text else [])
        logprobs = []
        if self._wants_logprobs and event.logprobs:
            logprobs = [
                chat_logprob(self._names, token_id, logprob)
                for token_id, logprob in zip(event.token_ids, event.logprobs, strict=True)
            ]
        return Delta(content, calls, logprobs)

    def _reason(self, event: FinishedEvent) -> str:
        if event.reason == "length":
            return "length"
        return "tool_calls" if self._called and not self._is_cut else "stop"

    def _read(self, parts: list[Part]) -> tuple[str, list[dict[str, Any]]]:
        content = ""
        calls: dict[int, dict[str, Any]] = {}
        for part in parts:
            match part:
                case Text(text):
                    content += text
                case CallBegun(number, name):
                    self._called = True
                    calls[number] = {
                        "index": number,
                        "id": f"call_{self._job_id}_{number}",
                        "type": "function",
                        "function": {"name": name, "arguments": ""},
                    }
                case Arguments(number, text):
                    call = calls.setdefault(
                        number, {"index": number, "function": {"arguments": ""}}
                    )
                    call["function"]["arguments"] += text
                case CallEnded(_, complete):
                    self._is_cut = not complete
                case CallCut():
                    self._is_cut = True
        return content, list(calls.values())
