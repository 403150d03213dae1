"""Which format of calls a chat template writes, found by having it write one."""

import pytest
from tokenizers import AddedToken

from roseinfer.text.tool_format import tool_format
from tests.roseinfer.models import byte_tokenizer
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


def test_tags_that_do_not_show_in_the_text_are_no_format() -> None:
    # given: where they are special tokens nobody can read them
    hidden = byte_tokenizer()
    hidden.chat_template = HERMES
    tags = ["<tool_call>", "</tool_call>"]
    shown = [AddedToken(tag, special=False) for tag in tags]
    hidden.add_tokens([AddedToken(tag, special=True) for tag in tags], special_tokens=True)
    assert tool_format(hidden) == ""
    # but ordinary ones
    visible = tokenizer(HERMES)
    visible.add_tokens(shown)
    assert tool_format(visible) == "hermes"


def test_there_is_no_format_without_a_tokenizer() -> None:
    assert tool_format(None) == ""
