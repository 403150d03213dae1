"""Which format of calls a chat template writes, found by having it write one."""

import pytest

from roseinfer.text.answer_formats import reasoning_format, tool_format
from tests.roseinfer.text.test_chat_template import HERMES, tokenizer

TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"


def writing(call: str) -> str:
    """A template that writes calls so."""
    return (
        TOOLS
        + "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        + "{% set f = c.function %}"
        + call
        + "{% endfor %}{% endfor %}"
    )


LLAMA3 = writing('{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}')
ARGUMENTS = "{{ f.arguments | tojson }}"
XML = "{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>{{ v }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (HERMES, "hermes"),
        (
            writing(
                '<tool_call>\n{"name": "{{ f.name }}", "arguments": '
                + ARGUMENTS
                + "}\n</tool_call>"
            ),
            "hermes",
        ),
        (LLAMA3, "llama3_json"),
        # The same tags around something else.
        (writing("<tool_call>{{ f.name }}" + XML + "</tool_call>"), ""),
        (writing("<tool_call><function={{ f.name }}>" + XML + "</function></tool_call>"), ""),
        (writing('[TOOL_CALLS][{"name": "{{ f.name }}", "arguments": ' + ARGUMENTS + "}]"), ""),
        # It writes calls, and tells the model of no tools.
        (HERMES.replace("tools", "gadgets"), ""),
        # It knows no tools, or refuses them.
        ("{% for m in messages %}{{ m.content }}{% endfor %}", ""),
        ("{% if tools %}{{ raise_exception('no tools') }}{% endif %}", ""),
        ({"default": "plain", "tool_use": HERMES}, "hermes"),
        (None, ""),
    ],
)
def test_the_format_is_what_the_template_writes(template: object, name: str) -> None:
    assert tool_format(tokenizer(template)) == name


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (
            "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}<think>",
            "think",
        ),
        (HERMES, ""),
        (None, ""),
    ],
)
def test_the_format_of_thoughts_is_what_the_template_knows(template: object, name: str) -> None:
    assert reasoning_format(tokenizer(template)) == name


def test_there_is_no_format_without_a_tokenizer() -> None:
    assert reasoning_format(None) == tool_format(None) == ""
