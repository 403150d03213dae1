"""Chunks are a pure function of the record and the log."""

import json
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from rose.engine_records import TokenLogprob
from rose.protocol import Event, FinishedEvent, TokenEvent
from rose_gateway.answers.rendering import AnswerHeader
from rose_gateway.chat.endpoint import ChatChunks, ChatCollector
from rose_gateway.chat.schema import ChatParameters
from rose_gateway.models.catalogue import Vocabulary
from rose_gateway.tools.tools import CallForm

Reason = Literal["eos", "stop", "length"]

VOCABULARY = Vocabulary([b"a", "ü".encode()[:1], b"</s>"])


def tokens(*texts: str) -> list[Event]:
    return [TokenEvent(index=i, token_ids=(i,), text=text) for i, text in enumerate(texts)]


def finished(index: int, reason: Reason = "eos") -> FinishedEvent:
    return FinishedEvent(index=index, reason=reason, prompt_tokens=7)


def log(*texts: str, reason: Reason = "eos") -> list[Event]:
    return [*tokens(*texts), finished(len(texts), reason)]


def streamed(parameters: ChatParameters, *logs: Sequence[Event]) -> list[dict[str, Any]]:
    """All chunks; choices take turns."""
    ids = ["0-a", *(f"0-a.{i}" for i in range(1, len(logs)))]
    chunks = ChatChunks(parameters, AnswerHeader(ids, "m", 1_700_000_000), VOCABULARY)
    data = [chunks.begin()]
    for turn in range(max(map(len, logs))):
        for choice, events in enumerate(logs):
            if turn < len(events):
                event = events[turn]
                data.append(chunks.feed(choice, event))
                if event.is_terminal:
                    chunks.ended(choice, event)
    data.append(chunks.usage_chunk())
    return [json.loads(item) for item in data if item is not None]


def whole(parameters: ChatParameters, *logs: Sequence[Event]) -> dict[str, Any]:
    ids = ["0-a", *(f"0-a.{i}" for i in range(1, len(logs)))]
    collector = ChatCollector(parameters, AnswerHeader(ids, "m", 1_700_000_000), VOCABULARY)
    for choice, events in enumerate(logs):
        for event in events:
            collector.feed(choice, event)
        collector.ended(choice, events[-1])
    return collector.answer()


def contents(chunks: list[dict[str, Any]]) -> list[str]:
    return [choice["delta"].get("content") for chunk in chunks for choice in chunk["choices"]]


def test_a_stream_begins_with_the_role_and_ends_with_the_reason() -> None:
    chunks = streamed(ChatParameters(), log("Hel", "", "lo"))

    assert contents(chunks) == ["", "Hel", "", "lo", None]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-0-a"}
    assert {chunk["created"] for chunk in chunks} == {1_700_000_000}
    assert "usage" not in chunks[0]


@pytest.mark.parametrize(
    ("reason", "expected"), [("eos", "stop"), ("stop", "stop"), ("length", "length")]
)
def test_the_reason_is_openai_s(reason: str, expected: str) -> None:
    events = log("x", reason=reason)

    assert streamed(ChatParameters(), events)[-1]["choices"][0]["finish_reason"] == expected
    assert whole(ChatParameters(), events)["choices"][0]["finish_reason"] == expected


def test_usage_comes_last_if_it_was_asked_for() -> None:
    chunks = streamed(ChatParameters(include_usage=True), log("a", "b"), log("c"))

    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    usage = chunks[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (7, 3, 10)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("text", ['"\\\n\r\t\x00', "ü🦊", "a\u2028b\u2029\x85c"])
def test_any_text_arrives_on_one_line(text: str) -> None:
    chunks = ChatChunks(ChatParameters(), AnswerHeader(["0-a"], "m\u2028", 0), Vocabulary())

    data = chunks.feed(0, tokens(text)[0])

    assert data is not None
    assert json.loads(data)["choices"][0]["delta"]["content"] == text
    assert len(data.splitlines()) == 1


def test_a_call_is_told_as_it_is_written() -> None:
    parameters = ChatParameters(form=CallForm("required", ("f", "g")), include_usage=True)
    events = log('{"name": "f", "argu', 'ments": {"a"', ': 1}}\n{"name": "g", "arguments": {}}')

    chunks = streamed(parameters, events)

    calls = [chunk["choices"][0]["delta"].get("tool_calls") for chunk in chunks[1:-1]]
    first = {"name": "f", "arguments": '{"a"'}
    second = {"name": "g", "arguments": "{}"}
    assert calls == [
        [{"index": 0, "id": "call_0-a_0", "type": "function", "function": first}],
        [
            {"index": 0, "function": {"arguments": ": 1}"}},
            {"index": 1, "id": "call_0-a_1", "type": "function", "function": second},
        ],
        None,
    ]
    assert chunks[0]["choices"][0]["delta"]["content"] is None
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    message = whole(parameters, events)["choices"][0]["message"]
    assert message["content"] is None
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ['{"a": 1}', "{}"]


def test_a_call_that_was_cut_off_ends_by_length() -> None:
    parameters = ChatParameters(form=CallForm("named", ("f",)))

    answer = whole(parameters, log('{"a', reason="length"))

    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"a'


CALL = '{"name": "f", "arguments": {"a": 1}}'


@pytest.mark.parametrize("end", range(1, len(CALL)))
@pytest.mark.parametrize("reason", ["length", "stop"])
def test_a_required_call_that_is_cut_off_leaves_no_text_and_is_not_called_complete(
    end: int, reason: Reason
) -> None:
    # given
    parameters = ChatParameters(form=CallForm("required", ("f",)))
    events = log(*CALL[:end], reason=reason)
    # when
    (answer,) = whole(parameters, events)["choices"]
    choices = [choice for chunk in streamed(parameters, events) for choice in chunk["choices"]]
    # then
    is_whole = end >= CALL.index("}}") + 1
    expected = "tool_calls" if is_whole and reason == "stop" else reason
    assert answer["finish_reason"] == choices[-1]["finish_reason"] == expected
    assert answer["message"]["content"] is None
    assert not any(choice["delta"].get("content") for choice in choices)
    said = "".join(
        call["function"]["arguments"]
        for choice in choices
        for call in choice["delta"].get("tool_calls", ())
    )
    calls = answer["message"].get("tool_calls", [])
    assert said == "".join(call["function"]["arguments"] for call in calls)
    assert CALL[CALL.index('{"a"') : -1].startswith(said)


def test_text_and_a_call_of_one_event_are_one_chunk() -> None:
    parameters = ChatParameters(form=CallForm("hermes", ("f",)))
    said = 'Well.<tool_call>{"name": "f", "arguments": {}}</tool_call>'

    chunks = streamed(parameters, log(said))

    delta = chunks[1]["choices"][0]["delta"]
    assert (delta["content"], len(delta["tool_calls"])) == ("Well.", 1)


def test_log_probabilities_name_their_tokens() -> None:
    top = ((0, -0.5), (1, -1.5), (9, -2.5))
    event = TokenEvent(index=0, token_ids=(0,), text="", logprobs=(TokenLogprob(-0.5, top),))
    parameters = ChatParameters(logprobs=True)

    chunks = streamed(parameters, [event, finished(1)])

    entry = chunks[1]["choices"][0]["logprobs"]["content"][0]
    assert (entry["token"], entry["bytes"], entry["logprob"]) == ("a", [97], -0.5)
    assert [top["token"] for top in entry["top_logprobs"]] == ["a", "\\xc3", "token_id:9"]
    assert [top["bytes"] for top in entry["top_logprobs"]] == [[97], [0xC3], None]
    assert chunks[1]["choices"][0]["delta"]["content"] == ""
    assert whole(parameters, [event, finished(1)])["choices"][0]["logprobs"]["content"] == [entry]


@pytest.mark.parametrize(
    "parameters",
    [
        ChatParameters(include_usage=True),
        ChatParameters(form=CallForm("hermes", ("f",)), metadata={"a": "b"}),
        ChatParameters(form=CallForm("named", ("f",))),
    ],
)
def test_openai_s_own_accumulation_of_the_chunks_is_the_whole_answer(
    parameters: ChatParameters,
) -> None:
    logs = [
        log("Once", " upon", '\n<tool_call>{"name": "f", "arguments": {"x":', "[1]}}</tool_call>"),
        log("b", ""),
    ]

    state = ChatCompletionStreamState()
    for chunk in streamed(parameters, *logs):
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    made = state.get_final_completion()

    answer = ChatCompletion.model_validate(whole(parameters, *logs))
    for ours, theirs in zip(answer.choices, made.choices, strict=True):
        assert (theirs.message.content or "") == (ours.message.content or "")
        assert theirs.finish_reason == ours.finish_reason
        assert [
            (call.id, call.function.name, call.function.arguments)  # type: ignore[union-attr]
            for call in theirs.message.tool_calls or ()
        ] == [
            (call.id, call.function.name, call.function.arguments)  # type: ignore[union-attr]
            for call in ours.message.tool_calls or ()
        ]


def test_terms_come_back_from_their_record() -> None:
    parameters = ChatParameters(
        CallForm("required", ("f", "g")), True, True, True, "flex", {"a": "b"}, "v"
    )

    assert ChatParameters.from_record(json.loads(json.dumps(parameters.as_record()))) == parameters


def test_thoughts_stand_beside_the_content_and_are_counted() -> None:
    # given: a token event that brings several tokens, as a broker's catching up makes it
    form = CallForm("hermes", ("f",), "think")
    parameters = ChatParameters(form=form, include_usage=True)
    texts = ["<think>", "\nHm", " <", "/think>", "\nHi"]
    merged = TokenEvent(
        index=0,
        token_ids=tuple(range(5)),
        text="".join(texts),
        text_lengths=tuple(map(len, texts)),
    )
    # when
    chunks = streamed(parameters, log(*texts))
    answers = [whole(parameters, log(*texts)), whole(parameters, [merged, finished(5)])]
    # then
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert [delta["reasoning"] for delta in deltas if "reasoning" in delta] == ["Hm"]
    assert all(delta.get("reasoning_content") == delta.get("reasoning") for delta in deltas)
    assert "".join(delta.get("content") or "" for delta in deltas) == "Hi"
    assert answers[0] == answers[1]
    message = answers[0]["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm", "Hi")
    for usage in (chunks[-1]["usage"], answers[0]["usage"]):
        assert usage["completion_tokens_details"]["reasoning_tokens"] == 4
