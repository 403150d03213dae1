"""What a completion says, as its jobs' events come: chunks of a stream, and the whole of them."""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from rose.engine_records import TokenLogprob
from rose.protocol import Event, FinishedEvent, TokenEvent
from rose_gateway.answers.rendering import AnswerHeader, ChunkMaker, UsageCounter
from rose_gateway.completions.schema import CompletionParameters
from rose_gateway.models.catalogue import TokenName, Vocabulary
from rose_gateway.requests.parsing import json_string

AnyEvent = TypeVar("AnyEvent", bound=Event)


class _LogprobsWriter:
    """The older shape of log-probabilities: columns, and where each token's text begins."""

    def __init__(self, top: int, vocabulary: Vocabulary, echo: str) -> None:
        self._top = top
        self._names = vocabulary
        self._echo = echo
        self._offset = len(echo)

    def columns(self, event: TokenEvent) -> dict[str, Any] | None:
        """Of an event's tokens; they begin where the text before the event ends."""
        if event.logprobs is None:
            return None
        made = empty_columns(self._top)
        prompt = event.prompt_logprobs
        if prompt is not None:
            offsets = text_offsets(self._echo, [self._names.name(i) for i in prompt.token_ids])
            for token in zip(prompt.token_ids, (None, *prompt.logprobs), offsets, strict=True):
                self._add(made, *token)
        offset = self._offset
        self._offset += len(event.text)
        for token_id, logprob in zip(event.token_ids, event.logprobs, strict=True):
            self._add(made, token_id, logprob, offset)
            offset += len(self._names.name(token_id).token)
        return made

    def _add(
        self, made: dict[str, Any], token_id: int, logprob: TokenLogprob | None, offset: int
    ) -> None:
        token = self._names.name(token_id).token
        made["tokens"].append(token)
        made["token_logprobs"].append(logprob and logprob.logprob)
        made["text_offset"].append(offset)
        if self._top:
            made["top_logprobs"].append(logprob and self._tops(token, logprob))

    def _tops(self, token: str, logprob: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens, and the one that came, though it be none of them."""
        tops = {self._names.name(top_id).token: top for top_id, top in logprob.top}
        return {token: logprob.logprob} | tops


def text_offsets(text: str, tokens: Sequence[TokenName]) -> list[int]:
    """Where each token of a prompt begins in its text, in characters.

    A token may be a part of a character. One that the text does not have, such as that of a
    beginning, takes no place in it; nor does a space that a tokenizer put before the first word.
    """
    raw, position = text.encode(), 0
    decode = getincrementaldecoder("utf-8")().decode
    offset, offsets = 0, []
    for token in tokens:
        offsets.append(offset)
        token_bytes = bytes(token.bytes or b"")
        if not raw.startswith(token_bytes, position):
            token_bytes = token_bytes.lstrip(b" ")
        if raw.startswith(token_bytes, position):
            position += len(token_bytes)
            offset += len(decode(token_bytes))
    return offsets


def empty_columns(top: int) -> dict[str, Any]:
    return {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [] if top else None,
        "text_offset": [],
    }


def _writers(
    parameters: CompletionParameters, choices: int, vocabulary: Vocabulary
) -> list[_LogprobsWriter] | None:
    """Of each choice; None where nobody asked."""
    if parameters.logprobs is None:
        return None
    top = parameters.logprobs
    return [_LogprobsWriter(top, vocabulary, parameters.echo(choice)) for choice in range(choices)]


def _shown(parameters: CompletionParameters, event: AnyEvent) -> AnyEvent:
    """As the caller sees it, who may have asked for no token beyond the prompt."""
    if parameters.writes:
        return event
    if isinstance(event, TokenEvent):
        return replace(event, token_ids=(), text="", logprobs=event.logprobs and ())
    if isinstance(event, FinishedEvent):
        return replace(event, index=0, reason="length")
    return event


def finish_reason(event: FinishedEvent) -> str:
    return "length" if event.reason == "length" else "stop"


class CompletionChunks(ChunkMaker):
    """An entry of a log makes one."""

    def __init__(
        self, parameters: CompletionParameters, header: AnswerHeader, vocabulary: Vocabulary
    ) -> None:
        fields = header.fields("cmpl", "text_completion") | {"system_fingerprint": None}
        super().__init__(
            fields, parameters.choices_of_a_prompt, include_usage=parameters.include_usage
        )
        self._parameters = parameters
        self._choices = range(len(header.job_ids))
        self._last = {"warnings": header.warnings} if header.warnings else {}
        self._logprobs = _writers(parameters, len(header.job_ids), vocabulary)
        self._text_heads = [f'{self._prefix}{{"index":{number},"text":' for number in self._choices]
        self._text_tail = ',"logprobs":null,"finish_reason":null}' + self._suffix

    def begin(self) -> str | None:
        """Before any event: the prompts, where they are to be echoed as they are."""
        if not self._parameters.echoes or self._parameters.scores_echoes:
            return None
        return self._chunk(
            *(_choice(number, self._parameters.echo(number)) for number in self._choices)
        )

    def feed(self, choice: int, event: TokenEvent | FinishedEvent) -> str:
        """What the next event of a choice brings. A token whose text is not certain yet brings an
        empty one: the reader sees that the answer goes on."""
        event = _shown(self._parameters, event)
        if isinstance(event, FinishedEvent):
            return self._chunk(_choice(choice, "", reason=finish_reason(event)), **self._last)
        if self._logprobs is not None:
            columns = self._logprobs[choice].columns(event)
            echo = self._parameters.echo(choice) if event.index == 0 else ""
            return self._chunk(_choice(choice, echo + event.text, columns))
        return self._text_heads[choice] + json_string(event.text) + self._text_tail

    def ended(self, choice: int, event: Event) -> None:
        super().ended(choice, _shown(self._parameters, event))


def _choice(
    number: int, text: str, logprobs: dict[str, Any] | None = None, reason: str | None = None
) -> dict[str, Any]:
    return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": reason}


class CompletionCollector(UsageCounter):
    """A whole completion."""

    def __init__(
        self, parameters: CompletionParameters, header: AnswerHeader, vocabulary: Vocabulary
    ) -> None:
        super().__init__(parameters.choices_of_a_prompt)
        self._parameters = parameters
        self._header, count = header, len(header.job_ids)
        self._texts = [[parameters.echo(number)] for number in range(count)]
        self._writers = _writers(parameters, count, vocabulary)
        self._columns = [empty_columns(parameters.logprobs or 0) for _ in range(count)]
        self._reasons = ["stop"] * count
        self._more = {"warnings": header.warnings} if header.warnings else {}

    def ended(self, choice: int, event: Event) -> None:
        super().ended(choice, _shown(self._parameters, event))

    def feed(self, choice: int, event: TokenEvent | FinishedEvent) -> None:
        event = _shown(self._parameters, event)
        if isinstance(event, FinishedEvent):
            self._reasons[choice] = finish_reason(event)
            return
        self._texts[choice].append(event.text)
        columns = self._writers[choice].columns(event) if self._writers else None
        for name, column in (columns or {}).items():
            if column is not None:
                self._columns[choice][name] += column

    def answer(self) -> dict[str, Any]:
        """When all choices have ended; as `CompletionAnswer`."""
        return {
            **self._header.fields("cmpl", "text_completion"),
            "choices": [
                _choice(number, "".join(texts), columns if self._writers else None, reason)
                for number, (texts, columns, reason) in enumerate(
                    zip(self._texts, self._columns, self._reasons, strict=True)
                )
            ],
            "usage": self.usage(),
            "system_fingerprint": None,
            **self._more,
        }
