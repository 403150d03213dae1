"""The chunks of a streamed chat completion: a pure function of its record and its log.

An entry of a log makes at most one chunk, whose `id:` is the position after it. So a reader that
was cut off knows exactly what it has.
"""

from typing import Any

from rose.protocol import FinishedEvent, TokenEvent
from rose_gateway.answers.chunk_maker import AnswerHeader, ChunkMaker
from rose_gateway.chat.output import ChoiceOutput
from rose_gateway.chat.parameters import ChatParameters
from rose_gateway.json_text import json_string
from rose_gateway.models.vocabulary import Vocabulary


class ChatChunks(ChunkMaker):
    def __init__(
        self, parameters: ChatParameters, header: AnswerHeader, vocabulary: Vocabulary
    ) -> None:
        more = {"service_tier": parameters.tier, "system_fingerprint": None}
        fields = header.fields("chatcmpl", "chat.completion.chunk") | more
        super().__init__(fields, len(header.job_ids), include_usage=parameters.include_usage)
        self._outputs = [ChoiceOutput(parameters, job_id, vocabulary) for job_id in header.job_ids]
        # What must be a call has no content. The others may have some.
        self._content = None if parameters.form.must_call else ""
        # Text that is just told needs no parser.
        self._plain = parameters.form.kind == "text" and not parameters.logprobs
        self._text_heads = [
            f'{self._prefix}{{"index":{number},"delta":{{"content":'
            for number in range(len(self._outputs))
        ]
        self._text_tail = '},"logprobs":null,"finish_reason":null}' + self._suffix

    def begin(self) -> str:
        """Before any event."""
        choices = [
            {
                "index": number,
                "delta": {"role": "assistant", "content": self._content, "refusal": None},
                "logprobs": None,
                "finish_reason": None,
            }
            for number in range(len(self._outputs))
        ]
        return self._chunk(*choices)

    def feed(self, choice: int, event: TokenEvent | FinishedEvent) -> str | None:
        """What the next event of a choice brings; None for nothing that can be told. Plain text
        that is not certain yet is told as an empty one: the reader sees that the answer goes on."""
        if self._plain and isinstance(event, TokenEvent):
            return self._text_heads[choice] + json_string(event.text) + self._text_tail
        made = self._outputs[choice].feed(event)
        if not (made.content or made.calls or made.logprobs or made.finish_reason):
            return None
        delta: dict[str, Any] = {}
        if made.content or (made.logprobs and not made.calls):
            delta["content"] = made.content
        if made.calls:
            delta["tool_calls"] = made.calls
        logprobs = {"content": made.logprobs, "refusal": None} if made.logprobs else None
        return self._chunk(
            {
                "index": choice,
                "delta": delta,
                "logprobs": logprobs,
                "finish_reason": made.finish_reason,
            }
        )
