"""A scripted model says its part, whoever begins it and whoever goes on."""

import json
from typing import Any

import pytest

from rose.protocol import ChatMessage, FunctionCall, JobSpec, ToolCall
from rose.sampling import SamplingParams
from rose_worker.settings import WorkerSettings
from tests.support.engines import answers
from tests.support.scripted import ScriptedEngine, answer_to, script

ADD = {"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}
SUM = script(
    {"call": "add", "arguments": {"a": "1", "b": 1}},
    {"call": "add", "arguments": {"a": "{result}", "b": 1}, "times": 2},
    {"say": "It is {result}."},
)


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def turn(number: int, result: str) -> list[ChatMessage]:
    """A call and its result."""
    call = ToolCall(id=f"c{number}", function=FunctionCall(name="add", arguments="{}"))
    return [
        ChatMessage(role="assistant", content="", tool_calls=(call,)),
        ChatMessage(role="tool", content=result, tool_call_id=f"c{number}"),
    ]


def job(*messages: ChatMessage, tools: Any = (ADD,), **sampling: Any) -> JobSpec:
    return JobSpec(id="job", prompt=messages, tools=tools, sampling=SamplingParams(**sampling))


def test_each_answer_of_the_assistant_is_a_step_of_the_script() -> None:
    # given a conversation that grows by a call and its result
    conversation = [user(SUM)]
    said = []

    # when
    for number in range(3):
        said.append(answer_to(job(*conversation)))
        conversation += turn(number, str(number + 2))
    said.append(answer_to(job(*conversation)))

    # then
    arguments = [json.loads(text.split("\n")[1])["arguments"] for text in said[:-1]]
    assert [given["a"] for given in arguments] == ["1", "2", "3"]
    assert said[-1] == "It is 4."
    assert answer_to(job(*conversation, *turn(9, "9"))) == "My script has ended."


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (job(user("Hello"), tools=()), "I have no script."),
        (job(user("Hello"), json_schema="{}"), "{}"),
        (job(user(SUM), tools=()), "I have no tool add."),
        (job(user(SUM), json_schema="{}"), '{"a": "1", "b": 1}'),
        (job(user(SUM), grammar="start: /./"), '{"name": "add", "arguments": {"a": "1", "b": 1}}'),
        (job(user(SUM + script({"say": "no"})), user("Go on")), "no"),
        (job(user(json.dumps(script({"say": "\n"})))), "\n"),
    ],
)
def test_the_request_says_how_a_call_is_written(given: JobSpec, said: str) -> None:
    assert answer_to(given) == said


def test_an_engine_goes_on_where_another_has_ended() -> None:
    # given
    asked = job(user(script({"say": "Ünïcode, and a longer text."})))
    whole = answers(ScriptedEngine(WorkerSettings(engine="null")), [asked])

    # when
    begun = answers(ScriptedEngine(WorkerSettings(engine="null")), [asked], steps=3)
    gone_on = answers(ScriptedEngine(WorkerSettings(engine="null")), [asked], begun)

    # then
    assert gone_on == whole
    assert (whole["job"].text, whole["job"].reason) == ("Ünïcode, and a longer text.", "eos")
    assert begun["job"].text == whole["job"].text[:12]


def test_a_stop_text_ends_the_part() -> None:
    # given
    asked = job(user(script({"calls": [["add", {}], ["add", {}]]})), stop=["</tool_call>"])

    # when
    answer = answers(ScriptedEngine(WorkerSettings(engine="null")), [asked])["job"]

    # then
    assert answer.text.count("<tool_call>") == 1
    assert answer.reason == "stop"
