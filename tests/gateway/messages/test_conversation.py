"""Anthropic's messages become those of a job."""

from typing import Any

import pytest

from rose_gateway.messages.conversation import chat_messages
from rose_gateway.messages.schema import CountTokens
from rose_gateway.requests.bad_request import BadRequest

HI = {"role": "user", "content": "hi"}


def read(messages: list[Any], **more: Any) -> list[dict[str, Any]]:
    return chat_messages(CountTokens.model_validate({"model": "m", "messages": messages, **more}))


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def use(call_id: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "look", "input": given}


def result(call_id: str, content: Any = "seen", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


@pytest.mark.parametrize(
    "system",
    ["be brief\nbe kind", [text("be brief", cache_control={"type": "ephemeral"}), text("be kind")]],
)
def test_a_system_prompt_is_a_text_or_blocks(system: Any) -> None:
    assert read([HI], system=system)[0] == {"role": "system", "content": "be brief\nbe kind"}


@pytest.mark.parametrize("rest", ["", "\nbe brief"])
def test_a_line_that_changes_with_each_request_does_not_spoil_the_prefix(rest: str) -> None:
    # given: what Claude Code sends, of two requests
    one, other = (
        [text(f"x-anthropic-billing-header: cc_version=2.1; cch={number};{rest}"), text("be kind")]
        for number in ("a1", "b2")
    )
    # then
    assert read([HI], system=one) == read([HI], system=other)
    assert "billing" not in read([HI], system=one)[0]["content"]
    assert read([HI], system=one)[0]["content"] == f"{rest}\nbe kind".strip()


def test_a_system_message_within_the_conversation_is_part_of_the_users_turn() -> None:
    # given: many chat templates refuse one that is not the first
    system = {"role": "system", "content": "be brief", "output_config": {"effort": "low"}}
    # then
    assert read([system, HI], system="be kind")[0]["content"] == "be kind\nbe brief"
    said = read([HI, system])
    assert said == [{"role": "user", "content": "hi\n<system>\nbe brief\n</system>"}]


def test_calls_and_their_results_become_messages_in_the_order_of_the_calls() -> None:
    messages = read(
        [
            HI,
            assistant(
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                text("I look."),
                use("toolu_a", place="Oslo"),
                use("toolu_b"),
            ),
            user(result("toolu_b", [text("two"), text("lines")]), result("toolu_a"), text("well?")),
        ]
    )

    assert messages == [
        HI,
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": "look", "arguments": arguments},
                }
                for call_id, arguments in (("toolu_a", '{"place": "Oslo"}'), ("toolu_b", "{}"))
            ],
        },
        {"role": "tool", "content": "seen", "tool_call_id": "toolu_a"},
        {"role": "tool", "content": "two\nlines", "tool_call_id": "toolu_b"},
        {"role": "user", "content": "well?"},
    ]


@pytest.mark.parametrize(
    ("content", "shown"),
    [("no such file", "Error: no such file"), ("Error: gone", "Error: gone"), (None, "Error")],
)
def test_a_result_that_is_an_error_says_so(content: str | None, shown: str) -> None:
    messages = read([HI, assistant(use("t")), user(result("t", content, is_error=True))])

    assert messages[-1]["content"] == shown


def test_thoughts_are_shown_to_models_that_think() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    request = CountTokens.model_validate(
        {"model": "m", "messages": [HI, assistant(thinking, text("a")), HI]}
    )

    assert "reasoning_content" not in chat_messages(request)[1]
    shown = chat_messages(request, thoughts=True)[1]
    assert shown == {"role": "assistant", "content": "a", "reasoning_content": "hm"}


def test_messages_of_one_role_that_follow_each_other_are_one() -> None:
    messages = read(
        [HI, HI, assistant(text("a")), assistant(text("b"), use("t")), user(result("t"))]
    )

    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert (messages[0]["content"], messages[1]["content"]) == ("hi\nhi", "a\nb")
    assert len(messages[1]["tool_calls"]) == 1


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([HI, assistant(use("a"), use("b")), user(result("a"))], "messages[2].content"),
        ([HI, user(result("a"))], "messages[1].content"),
        ([HI, assistant(use("a"), use("a")), user(result("a"))], "messages[1].content"),
    ],
)
def test_what_does_not_belong_together_is_refused(messages: list[Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read(messages)

    assert refused.value.param == param
