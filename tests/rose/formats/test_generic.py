"""Tools of a model whose chat template knows none, as plain messages."""

from typing import Any

from rose.formats.families.generic import with_tools_as_text
from rose.protocol.jobs import job_from

TOOL = {"type": "function", "function": {"name": "now", "description": "", "parameters": {}}}
CALL = {"id": "a", "type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}
WRITTEN = '<tool_call>{"name": "now", "arguments": {"a": 1}}</tool_call>'


def message(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def test_the_system_says_which_functions_there_are() -> None:
    made = with_tools_as_text([message("system", "Be kind."), message("user", "Hi")], [TOOL])

    assert made[0]["content"].startswith("Be kind.\n\nYou can call")
    assert '"name": "now"' in made[0]["content"]
    assert made[1] == message("user", "Hi")


def test_without_a_system_the_user_says_it() -> None:
    (made,) = with_tools_as_text([message("user", "Hi")], [TOOL])

    assert made["content"].startswith("You can call")
    assert made["content"].endswith("\n\nHi")


def test_calls_and_their_results_are_texts_whose_roles_take_turns() -> None:
    # given
    messages = [
        message("user", "Hi"),
        message("assistant", "So.", tool_calls=[CALL, CALL]),
        message("tool", "1", tool_call_id="a"),
        message("tool", "2", tool_call_id="a"),
        message("user", "Well?"),
    ]
    # when
    made = with_tools_as_text(messages, [])
    # then
    assert [one["role"] for one in made] == ["user", "assistant", "user"]
    assert made[1] == message("assistant", f"So.\n\n{WRITTEN}\n{WRITTEN}")
    assert made[2]["content"].split("\n\n")[-1] == "Well?"
    assert made[2]["content"].count("<tool_response>") == 2
    job_from({"id": "0-a", "prompt": made})
