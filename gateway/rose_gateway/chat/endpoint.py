"""The endpoint of a chat completion: from its request to the queue, from its jobs to the answer."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rose.formats.parts import (
    Arguments,
    CallBegun,
    CallCut,
    CallEnded,
    Part,
    Text,
    Thought,
)
from rose.protocol import FinishedEvent, TokenEvent
from rose_gateway.answers.endpoint import (
    ChoicesEndpoint,
    IncomingRequest,
    check_metadata,
    tier_of,
    token_limit,
)
from rose_gateway.answers.prefill import check_prefill
from rose_gateway.answers.rendering import AnswerHeader, ChunkMaker, UsageCounter, left_out_of
from rose_gateway.answers.thinking import plan_thinking
from rose_gateway.answers.token_parser import TokenParser
from rose_gateway.chat.schema import ChatParameters, ChatRequest
from rose_gateway.jobs.job_client import Submission
from rose_gateway.jobs.job_group import Record
from rose_gateway.models.catalogue import ServedModel, Vocabulary, chat_logprob, vocabulary_key
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.conversation import AssistantMessage, chat_messages, check_chat
from rose_gateway.requests.parsing import json_string
from rose_gateway.requests.sampling import (
    checked,
    format_fields,
    format_param,
    grammar_param,
    sampling_fields,
)
from rose_gateway.requests.warnings import not_followed
from rose_gateway.tools.tools import CallForm, ToolPlan, chat_choice, chat_functions, plan_tools


class Delta(NamedTuple):
    """What one event brings."""

    content: str = ""
    thought: str = ""
    calls: list[dict[str, Any]] = []  # noqa: RUF012 - never changed
    """as `delta.tool_calls`: at most one entry a call"""
    logprobs: list[dict[str, Any]] = []  # noqa: RUF012 - never changed
    finish_reason: str | None = None


class ChoiceOutput:
    def __init__(self, parameters: ChatParameters, job_id: str, vocabulary: Vocabulary) -> None:
        """`job_id` is that of the choice's own job."""
        self._job_id = job_id
        self._parser = TokenParser(parameters.form.parser())
        self._names = vocabulary
        self._wants_logprobs = parameters.logprobs
        self._called = False
        self._is_cut = False

    @property
    def thought_tokens(self) -> int:
        return self._parser.thought_tokens

    def feed(self, event: TokenEvent | FinishedEvent) -> Delta:
        if isinstance(event, FinishedEvent):
            parts = self._parser.finish(cut=event.reason != "eos")
            return self._read(parts)._replace(finish_reason=self._reason(event))
        delta = self._read(self._parser.feed(event))
        logprobs = []
        if self._wants_logprobs and event.logprobs:
            logprobs = [
                chat_logprob(self._names, token_id, logprob)
                for token_id, logprob in zip(event.token_ids, event.logprobs, strict=True)
            ]
        return delta._replace(logprobs=logprobs)

    def _reason(self, event: FinishedEvent) -> str:
        if event.reason == "length":
            return "length"
        return "tool_calls" if self._called and not self._is_cut else "stop"

    def _read(self, parts: list[Part]) -> Delta:
        content = thought = ""
        calls: dict[int, dict[str, Any]] = {}
        for part in parts:
            match part:
                case Text(text):
                    content += text
                case Thought(text):
                    thought += text
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
        return Delta(content, thought, list(calls.values()))


class ChatChunks(ChunkMaker):
    def __init__(
        self, parameters: ChatParameters, header: AnswerHeader, vocabulary: Vocabulary
    ) -> None:
        more = {"service_tier": parameters.tier, "system_fingerprint": None}
        fields = header.fields("chatcmpl", "chat.completion.chunk") | more
        super().__init__(fields, len(header.job_ids), include_usage=parameters.include_usage)
        self._outputs = [ChoiceOutput(parameters, job_id, vocabulary) for job_id in header.job_ids]
        self._more = {"warnings": header.warnings} if header.warnings else {}
        # What must be a call has no content. The others may have some.
        self._content = None if parameters.form.must_call else ""
        # Text that is just told needs no parser.
        self._plain = parameters.form.is_plain and not parameters.logprobs
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
        return self._chunk(*choices, **self._more)

    def feed(self, choice: int, event: TokenEvent | FinishedEvent) -> str | None:
        """What the next event of a choice brings; None for nothing that can be told. Plain text
        that is not certain yet is told as an empty one: the reader sees that the answer goes on."""
        if self._plain and isinstance(event, TokenEvent):
            return self._text_heads[choice] + json_string(event.text) + self._text_tail
        made = self._outputs[choice].feed(event)
        if not (made.thought or made.calls or made.logprobs or made.finish_reason):
            if not made.content:
                return None
            return self._text_heads[choice] + json_string(made.content) + self._text_tail
        if made.finish_reason:
            self.thought(self._outputs[choice].thought_tokens)
        delta: dict[str, Any] = {}
        if made.thought:
            delta |= {"reasoning_content": made.thought, "reasoning": made.thought}
        if made.content or (made.logprobs and not (made.calls or made.thought)):
            delta["content"] = made.content
        if made.calls:
            delta["tool_calls"] = made.calls
        logprobs = {"content": made.logprobs, "refusal": None} if made.logprobs else None
        left_out = left_out_of(event)
        return self._chunk(
            {
                "index": choice,
                "delta": delta,
                "logprobs": logprobs,
                "finish_reason": made.finish_reason,
            },
            **({"warnings": [*self._more.get("warnings", ()), *left_out]} if left_out else {}),
        )


class ChatCollector(UsageCounter):
    def __init__(
        self, parameters: ChatParameters, header: AnswerHeader, vocabulary: Vocabulary
    ) -> None:
        super().__init__(len(header.job_ids))
        self._parameters, self._header = parameters, header
        outputs = (ChoiceOutput(parameters, job_id, vocabulary) for job_id in header.job_ids)
        self._choices = [_Choice(output, parameters.form) for output in outputs]
        self._left_out: list[dict[str, Any]] = []

    def feed(self, choice: int, event: TokenEvent | FinishedEvent) -> None:
        self._choices[choice].feed(event)
        if isinstance(event, FinishedEvent):
            self._left_out = self._left_out or left_out_of(event)
            self.thought(self._choices[choice].thought_tokens)

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
        if warnings := [*self._header.warnings, *self._left_out]:
            answer["warnings"] = warnings
        if self._parameters.metadata:
            answer["metadata"] = dict(self._parameters.metadata)
        return answer


class _Choice:
    def __init__(self, output: ChoiceOutput, form: CallForm) -> None:
        self._output = output
        self._must_call = form.must_call
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._arguments: list[list[str]] = []
        self._logprobs: list[dict[str, Any]] = []
        self._reason: str | None = None

    def feed(self, event: TokenEvent | FinishedEvent) -> None:
        delta = self._output.feed(event)
        self._texts.append(delta.content)
        self._thoughts.append(delta.thought)
        self._logprobs += delta.logprobs
        self._reason = delta.finish_reason
        for call in delta.calls:
            if call["index"] == len(self._calls):
                self._calls.append(call)
                self._arguments.append([])
            self._arguments[call["index"]].append(call["function"]["arguments"])

    @property
    def thought_tokens(self) -> int:
        return self._output.thought_tokens

    def answer(self, number: int, *, with_logprobs: bool) -> dict[str, Any]:
        content = "".join(self._texts)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if (self._calls or self._must_call) and not content else content,
            "refusal": None,
            "annotations": [],
        }
        if thought := "".join(self._thoughts):
            message |= {"reasoning_content": thought, "reasoning": thought}
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


async def make_submission(incoming: IncomingRequest, request: ChatRequest) -> Submission:
    """Raises: BadRequest, ApiError, BrokerUnavailable"""
    model = await incoming.services.catalogue.resolve(request.model)
    return _submission(incoming, request, model)


def _submission(incoming: IncomingRequest, request: ChatRequest, model: ServedModel) -> Submission:
    """Raises: BadRequest"""
    check_chat(request.model, "1" if model.chat else "0")
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options is only for stream: true", "stream_options")
    tools = _tools(request, model)
    left_out: list[str] = []
    form_fields = format_fields(request.response_format, left_out)
    sampling = _sampling(request, model, tools, form_fields)
    form = tools.form.with_thoughts(model.reasoning_format)
    thinking = plan_thinking(request, model, form.thoughts)
    priority = incoming.priority_of(request.service_tier)
    metadata = check_metadata(request.metadata)
    parameters = ChatParameters(
        form=form,
        logprobs=bool(request.logprobs),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        stream=bool(request.stream),
        tier=tier_of(priority),
        metadata=metadata,
        vocabulary=vocabulary_key(model) if request.logprobs else "",
        grammar=grammar_param(request, format_param(request.response_format)),
        messages=_stored(request),
    )
    messages = chat_messages(request.messages, thoughts=bool(model.reasoning_format))
    if continues := _continues(request):
        check_prefill(messages, model, sampling, form, f"messages[{len(messages) - 1}]")
    return Submission(
        model,
        messages,
        Record(
            "chat",
            request.model,
            incoming.sha256,
            parameters.as_record(),
            choices=request.n or 1,
            store=request.store is not False,
            warnings=[
                *incoming.warned(thinking.warnings),
                *tools.warnings,
                *not_followed(left_out, "response_format"),
            ],
        ),
        sampling={**tools.with_lazy(sampling), **form.sampling, **thinking.sampling},
        tools=tools.definitions,
        chat_template_kwargs=thinking.template_kwargs,
        priority=priority,
        deadline_s=request.deadline_s,
        idempotency_key=incoming.idempotency_key,
        cache_salt=request.cache_salt,
        session=incoming.session or request.prompt_cache_key,
        continues=continues,
    )


def _continues(request: ChatRequest) -> bool:
    """Whether the answer continues the last message. Raises: BadRequest"""
    last = request.messages[-1]
    wanted = request.continue_final_message
    if wanted is None:
        wanted = isinstance(last, AssistantMessage) and bool(last.prefix)
    if request.add_generation_prompt is not None and request.add_generation_prompt == wanted:
        raise BadRequest(
            "add_generation_prompt: an answer begins a new message, or continues the last one: "
            "leave it out",
            "add_generation_prompt",
        )
    return wanted


def _stored(request: ChatRequest) -> tuple[dict[str, Any], ...]:
    if not request.store:
        return ()
    return tuple(message.model_dump(exclude_none=True) for message in request.messages)


def _tools(request: ChatRequest, model: ServedModel) -> ToolPlan:
    """Raises: BadRequest"""
    functions = chat_functions(request.tools or ())
    choice = chat_choice(request.tool_choice, has_tools=bool(functions))
    if choice.mode == "auto" and not functions:
        return ToolPlan()
    return plan_tools(
        functions,
        choice,
        tool_format=model.tool_format,
        parallel=request.parallel_tool_calls is not False,
        is_default=request.tool_choice is None,
    )


def _sampling(
    request: ChatRequest, model: ServedModel, tools: ToolPlan, form: Mapping[str, Any]
) -> dict[str, Any]:
    """Raises: BadRequest"""
    limits = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise BadRequest(
            "max_tokens and max_completion_tokens are two names of one limit and differ",
            "max_tokens",
        )
    if request.top_logprobs and not request.logprobs:
        raise BadRequest("top_logprobs needs logprobs: true", "top_logprobs")
    most = token_limit(next(iter(limits - {-1}), None), model.context_tokens)
    own = sampling_fields(request, max_new_tokens=most)
    if request.logprobs:
        own |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    if tools.stop:
        own["stop"] = (*own.get("stop", ()), *tools.stop)
    return checked(own, response_format=form, tool_choice=tools.sampling)


ENDPOINT = ChoicesEndpoint(make_submission, ChatParameters.from_record, ChatChunks, ChatCollector)
