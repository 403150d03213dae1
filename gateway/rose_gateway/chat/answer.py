"""A whole chat completion: the same deltas as those of a stream, put together."""

from typing import Any

from rose.protocol import FinishedEvent, TokenEvent
from rose_gateway.answers.chunk_maker import AnswerHeader
from rose_gateway.answers.usage import UsageCounter
from rose_gateway.chat.output import ChoiceOutput
from rose_gateway.chat.parameters import ChatParameters
from rose_gateway.models.vocabulary import Vocabulary
from rose_gateway.tools.tools import CallForm


class ChatCollector(UsageCounter):
    def __init__(
        self, parameters: ChatParameters, header: AnswerHeader, vocabulary: Vocabulary
    ) -> None:
        super().__init__(len(header.job_ids))
        self._parameters, self._header = parameters, header
        outputs = (ChoiceOutput(parameters, job_id, vocabulary) for job_id in header.job_ids)
        self._choices = [_Choice(output, parameters.form) for output in outputs]

    def feed(self, choice: int, event: TokenEvent | FinishedEvent) -> None:
        self._choices[choice].feed(event)

    def answer(self) -> dict[str, Any]:
        """When all choices have ended; as `ChatAnswer`."""
        answer = {
            **self._header.fields("chatcmpl", "chat.completion"),
            "choices": [
                choice.answer(number, with_logprobs=self._parameters.logprobs)
                for number, choice in enumerate(self._choices)
            ],
            "usage": self.usage(),
            "service_tier": self._parameters.tier,
            "system_fingerprint": None,
        }
        if self._parameters.metadata:
            answer["metadata"] = dict(self._parameters.metadata)
        return answer


class _Choice:
    def __init__(self, output: ChoiceOutput, form: CallForm) -> None:
        self._output = output
        self._must_call = form.must_call
        self._texts: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._arguments: list[list[str]] = []
        self._logprobs: list[dict[str, Any]] = []
        self._reason: str | None = None

    def feed(self, event: TokenEvent | FinishedEvent) -> None:
        delta = self._output.feed(event)
        self._texts.append(delta.content)
        self._logprobs += delta.logprobs
        self._reason = delta.finish_reason
        for call in delta.calls:
            if call["index"] == len(self._calls):
                self._calls.append(call)
                self._arguments.append([])
            self._arguments[call["index"]].append(call["function"]["arguments"])

    def answer(self, number: int, *, with_logprobs: bool) -> dict[str, Any]:
        content = "".join(self._texts)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if (self._calls or self._must_call) and not content else content,
            "refusal": None,
            "annotations": [],
        }
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {
                        "name": call["function"]["name"],
                        "arguments": "".join(arguments),
                    },
                }
                for call, arguments in zip(self._calls, self._arguments, strict=True)
            ]
        return {
            "index": number,
            "message": message,
            "logprobs": {"content": self._logprobs, "refusal": None} if with_logprobs else None,
            "finish_reason": self._reason,
        }
