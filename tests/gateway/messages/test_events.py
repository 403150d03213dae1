"""A log gives the same events for ever, with the same numbers, from wherever they are followed."""

import json
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from hypothesis import given
from hypothesis import strategies as st

from rose.protocol import Event, FinishedEvent, TokenEvent
from rose_gateway.access.sealing import Seal
from rose_gateway.errors import ApiError
from rose_gateway.messages.events import MessageEvents
from rose_gateway.messages.schema import MessageParameters
from rose_gateway.tools.tools import CallForm
from tests.gateway.responses.logs import FORMS, log_of, pieces

JOB = "0-feed"


def parameters(form: CallForm | None = None, *stops: str) -> MessageParameters:
    return MessageParameters("m", form or CallForm(), stops, stream=True)


SEAL = Seal([AESSIV(bytes(64))], "somebody")


def events_of(
    asked: MessageParameters, log: list[Event], after: int = -1
) -> tuple[list[dict[str, Any]], MessageEvents]:
    """The events of a stream, whose frames must agree with the data that they carry."""
    made = MessageEvents(asked, JOB, after=after, seal=SEAL)
    frames = made.begin() + b"".join(
        made.feed(event)
        if isinstance(event, TokenEvent | FinishedEvent)
        else made.failed(ApiError(500, "it went wrong"))
        for event in log
    )
    events = []
    for frame in frames.decode().split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in frame.split("\n"))
        data = json.loads(lines["data"])
        assert lines["event"] == data["type"]
        assert lines["id"] == str(after + 1 + len(events))
        events.append(data)
    return events, made


#: Of a block, by the type of a delta.
FIELDS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "input",
}


def joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks, as a client puts them together; its inputs as text."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(dict(event["content_block"]))
                if blocks[-1]["type"] == "tool_use":
                    blocks[-1]["input"] = ""
            case "content_block_delta":
                delta = event["delta"]
                kind = delta.pop("type")
                (said,) = delta.values()
                blocks[event["index"]][FIELDS[kind]] += said
    return blocks


@st.composite
def cases(draw: st.DrawFn) -> tuple[MessageParameters, list[Event]]:
    form, outputs = FORMS[draw(st.sampled_from(sorted(FORMS)))]
    if draw(st.booleans()):
        form, outputs = (
            replace(form, thoughts="think"),
            outputs.map("<think>Hm.</think>\n\n{}".format),
        )
    texts = pieces(draw(outputs), draw(st.lists(st.integers(0, 60), max_size=12)))
    end = draw(st.sampled_from(["eos", "stop", "length", "cancelled", "crash_loop"]))
    return parameters(form), log_of(texts, end)


@given(cases(), st.integers(-1, 40))
def test_whoever_resumes_gets_the_rest(
    case: tuple[MessageParameters, list[Event]], after: int
) -> None:
    asked, log = case
    whole, made = events_of(asked, log)
    rest, _ = events_of(asked, log, after)

    assert rest == whole[after + 1 :]
    # and: the stream says what the whole message says
    kinds = [event["type"] for event in whole]
    assert kinds[0] == "message_start"
    assert kinds.count("content_block_start") >= kinds.count("content_block_stop")
    if made.message is None:
        assert kinds[-1] == "error"
        return
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")
    assert whole[-2]["delta"]["stop_reason"] == made.message["stop_reason"]
    blocks = joined(whole)
    shown = [dict(block) for block in made.message["content"]]
    for block, said in zip(blocks, shown, strict=True):
        if block["type"] == "tool_use":
            assert isinstance(said.pop("input"), dict)
            del block["input"]
    assert blocks == shown


CALLS = (
    'Well. <tool_call>\n{"name": "f", "arguments": {"a": [1, "}"]}}\n</tool_call>\n'
    '<tool_call>\n{"name": "f", "arguments": {"a": 2}}\n</tool_call>'
)


def test_text_and_calls_are_blocks() -> None:
    whole, made = events_of(parameters(CallForm("hermes", ("f",))), log_of(list(CALLS)))

    assert made.message is not None
    assert made.message["content"] == [
        {"type": "text", "text": "Well."},
        {"type": "tool_use", "id": f"toolu_{JOB}_0", "name": "f", "input": {"a": [1, "}"]}},
        {"type": "tool_use", "id": f"toolu_{JOB}_1", "name": "f", "input": {"a": 2}},
    ]
    assert made.message["stop_reason"] == "tool_use"
    assert whole[-2]["usage"]["output_tokens"] == len(CALLS)
    assert [json.loads(block["input"]) for block in joined(whole)[1:]] == [
        {"a": [1, "}"]},
        {"a": 2},
    ]


def test_thoughts_are_a_block_before_the_text() -> None:
    said = ["<think>", "Hm", ", well.", "</think>", "\n\n", "Yes."]
    whole, made = events_of(parameters(CallForm(thoughts="think")), log_of(said))

    assert made.message is not None
    thought, text = made.message["content"]
    assert thought["thinking"] == "Hm, well."
    assert text == {"type": "text", "text": "Yes."}
    assert made.message["usage"]["output_tokens_details"]["thinking_tokens"] >= 2
    deltas = [event["delta"]["type"] for event in whole if event["type"] == "content_block_delta"]
    assert deltas == ["thinking_delta", "thinking_delta", "signature_delta", "text_delta"]
    assert SEAL.opened(thought["signature"]) == "Hm, well."


def test_thoughts_that_are_omitted_are_in_their_signature() -> None:
    said = ["<think>", "Hm", ", well.", "</think>", "\n\n", "Yes."]
    asked = replace(parameters(CallForm(thoughts="think")), omits_thoughts=True)

    whole, made = events_of(asked, log_of(said))

    assert made.message is not None
    thought, _ = made.message["content"]
    assert joined(whole) == made.message["content"]
    assert thought["thinking"] == ""
    assert SEAL.opened(thought["signature"]) == "Hm, well."


def test_a_call_that_was_cut_off_has_what_can_be_read_of_its_input() -> None:
    said = '<tool_call>\n{"name": "f", "arguments": {"a": [1, "and so'
    _, made = events_of(parameters(CallForm("hermes", ("f",))), log_of([said], "length"))

    assert made.message is not None
    assert made.message["content"][0]["input"] == {"a": [1, "and so"]}
    assert made.message["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("stop", "reason"), [("END", "stop_sequence"), ("</tool_call>", "end_turn"), (None, "end_turn")]
)
def test_the_stop_sequence_that_ended_it_is_named(stop: str | None, reason: str) -> None:
    *log, last = log_of(["a"], "stop")
    ended = FinishedEvent(index=last.index, reason="stop", prompt_tokens=5, stop=stop)
    _, made = events_of(parameters(None, "END"), [*log, ended])

    assert made.message is not None
    assert made.message["stop_reason"] == reason
    assert made.message["stop_sequence"] == ("END" if reason == "stop_sequence" else None)


def test_cached_tokens_are_no_part_of_the_input_tokens() -> None:
    ended = FinishedEvent(index=0, reason="eos", prompt_tokens=5, cached_tokens=4)
    _, made = events_of(parameters(), [ended])

    assert made.message is not None
    assert made.message["usage"]["input_tokens"] == 1
    assert made.message["usage"]["cache_read_input_tokens"] == 4
