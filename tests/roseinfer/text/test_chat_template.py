"""Chats with tools, as the templates of real families write them, rendered to token ids."""

import inspect
from typing import Any

import pytest

from rose.errors import InvalidParameter
from rose.protocol.jobs import job_from
from roseinfer.text.chat_template import encode_chat, template_of
from tests.rose.protocol.test_chat import CALL, CHAT, WEATHER, with_call
from tests.roseinfer.models import byte_tokenizer

# In the manner of Qwen and Hermes.
HERMES = """
{%- if tools %}{% for tool in tools %}<tools>{{ tool | tojson }}</tools>{% endfor %}{% endif -%}
{%- for message in messages -%}
<{{ message.role }}>{{ message.content }}
{%- for call in message.tool_calls -%}
{%- set function = call.function -%}
<tool_call>{"name": "{{ function.name }}", "arguments": {{ function.arguments | tojson }}}
{{- '</tool_call>' -}}
{%- endfor -%}
{%- if message.tool_call_id is defined %}[{{ message.tool_call_id }}]{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<assistant>{% endif -%}
"""


def tokenizer(template: object) -> Any:
    made = byte_tokenizer()
    made.chat_template = template
    return made


def rendered(template: object, *chat: Any) -> str:
    made = tokenizer(template)
    text: str = made.decode(encode_chat(made, *chat))
    return text


#: As Qwen 3's: a template may leave out what it was told nothing of.
THINKING = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
)


def test_a_template_is_told_what_the_job_says_beside() -> None:
    chat = [{"role": "user", "content": "hi"}]
    assert rendered(THINKING, chat) == "hi"
    assert rendered(THINKING, chat, (), {"enable_thinking": False}) == "hi<think></think>"
    assert rendered(THINKING, chat, (), {"enable_thinking": True, "other": 1}) == "hi"


def test_no_argument_of_the_renderer_can_be_said() -> None:
    """Of the transformers that is installed: a newer one may have more than a job is asked for."""
    # given
    made = tokenizer(THINKING)
    own = inspect.signature(made.apply_chat_template).parameters.values()
    # then
    for name in [one.name for one in own if one.kind is not one.VAR_KEYWORD]:
        with pytest.raises(InvalidParameter, match=name):
            encode_chat(made, CHAT, (), {name: None})
        with pytest.raises(InvalidParameter, match=name):
            job_from({"id": "0-a", "prompt": CHAT, "chat_template_kwargs": {name: None}})


def test_calls_and_tools_are_objects_to_the_template() -> None:
    # when
    text = rendered(HERMES, CHAT[1:], [WEATHER])
    # then
    before, _, chat = text.partition("</tools>")
    assert before.startswith('<tools>{"type": "function", "function": {"name": "get_weather"')
    assert chat == (
        "<user>And in Köln?"
        '<assistant><tool_call>{"name": "get_weather", "arguments": {"city": "Köln", "days": 2}}'
        "</tool_call><tool>rain[call_1]<assistant>"
    )
    # and what was given has not changed
    assert isinstance(CALL["function"]["arguments"], str)


def test_a_template_that_mentions_no_tools_leaves_them_out() -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
    assert rendered(template, CHAT[1:2], [WEATHER]) == rendered(template, CHAT[1:2])


@pytest.mark.parametrize(
    ("template", "role"),
    [
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "system"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}{# developer #}", "developer"),
    ],
)
def test_a_developer_is_the_system_where_the_template_knows_none(template: str, role: str) -> None:
    assert rendered(template, CHAT[:1]) == role


def test_a_model_may_have_a_template_of_its_own_for_tools() -> None:
    # given
    templates = {"default": "plain", "tool_use": "with tools"}
    # then
    assert rendered(templates, CHAT[:1]) == "plain"
    assert rendered(templates, CHAT[:1], [WEATHER]) == "with tools"


def test_templates_for_other_purposes_are_none() -> None:
    # given
    made = tokenizer({"rag": "documents", "tool_use": "with tools"})
    # then
    assert template_of(made) == ""
    with pytest.raises(InvalidParameter, match="no chat template"):
        encode_chat(made, CHAT[:1])
    assert made.decode(encode_chat(made, CHAT[:1], [WEATHER])) == "with tools"


def test_a_template_that_knows_no_tool_role_refuses_it() -> None:
    template = "{% for m in messages %}{{ raise_exception('no ' ~ m.role) }}{% endfor %}"
    with pytest.raises(InvalidParameter, match="refused the messages: no tool"):
        rendered(template, CHAT[3:])


def test_a_number_beyond_floats_comes_back_as_the_model_wrote_it() -> None:
    # given: what JSON allows, a grammar lets through, and a template could not write again
    job = job_from({"id": "0-a", "prompt": with_call(arguments='{"far": 1e999, "near": 1.5}')})
    # when
    text = rendered(HERMES, [message.model_dump(exclude_none=True) for message in job.messages])
    # then
    assert '"arguments": {"far": "1e999", "near": 1.5}' in text


STRIPS = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}"
OPEN = ({"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because"})


@pytest.mark.parametrize("template", [HERMES, STRIPS])
@pytest.mark.parametrize("said", ["Because", "Because <eos> of", "x", "Why?"])
def test_an_answer_continues_the_last_message(template: str, said: str) -> None:
    made = tokenizer(template)
    chat = [OPEN[0], {**OPEN[1], "content": said}]

    ids = encode_chat(made, chat, continue_final=True)

    assert made.decode(ids).endswith(f"<assistant>{said}")
    assert made.eos_token_id not in ids


def test_a_template_that_changes_the_last_message_cannot_continue_it() -> None:
    made = tokenizer("{% for m in messages %}<{{ m.role }}>{{ m.content | upper }}{% endfor %}")

    with pytest.raises(InvalidParameter, match="refused the messages"):
        encode_chat(made, OPEN, continue_final=True)


@pytest.mark.parametrize(
    "prompt",
    ["Why?", OPEN[:1], [{**OPEN[1], "content": ""}], [OPEN[0], {**OPEN[1], "tool_calls": [CALL]}]],
)
def test_there_is_nothing_to_continue(prompt: Any) -> None:
    with pytest.raises(InvalidParameter, match="continue_final_message needs"):
        job_from({"id": "j", "prompt": prompt, "continue_final_message": True})
