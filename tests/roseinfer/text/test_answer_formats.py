"""Which format of calls a chat template writes, found by having it write one."""

import pytest

from roseinfer.text.answer_formats import reasoning_format, tool_format
from roseinfer.text.chat_template import variables_of
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

OBJECT = '{"name": "{{ f.name }}", "arguments": ' + ARGUMENTS + "}"
EACH = "{% for k, v in f.arguments.items() %}"
#: In the manner of each family's own template.
CALLS = {
    "harmony": "<|start|>assistant to=functions.{{ f.name }}<|channel|>commentary json<|message|>",
    "kimi_k2": "<|tool_call_begin|>functions.{{ f.name }}:0<|tool_call_argument_begin|>"
    + ARGUMENTS,
    "deepseek": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n"
    + "{{ '' + f.arguments }}\n```",
    "mistral": "[TOOL_CALLS][" + OBJECT + "]",
    "command_r": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "{{ f.name }}", '
    + '"parameters": '
    + ARGUMENTS
    + "}]<|END_ACTION|>",
    "function_gemma": "<start_function_call>call:{{ f.name }}{{ '{' }}"
    + EACH
    + "{{ k }}:{% endfor %}}",
    "minimax_m2": '<invoke name="{{ f.name }}">\n'
    + EACH
    + '<parameter name="{{ k }}">{{ v }}</parameter>{% endfor %}',
    "qwen3_xml": "<tool_call>\n<function={{ f.name }}>\n"
    + EACH
    + "<parameter={{ k }}>\n{{ v }}\n</parameter>{% endfor %}</function>",
    "glm45": "<tool_call>{{ f.name }}\n"
    + EACH
    + "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>{% endfor %}</tool_call>",
    "phi4": "<|tool_call|>[" + OBJECT + "]<|/tool_call|>",
    "granite": "<|tool_call|>[" + OBJECT + "]",
    "pythonic": "[{{ f.name }}(" + EACH + '{{ k }}="{{ v }}"{% endfor %})]',
}


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
        (writing("<tool_call>{{ f.name }}" + XML + "</tool_call>"), "generic"),
        *((writing(call), name) for name, call in CALLS.items()),
        # Kimi K2 Thinking's shows the call's id, Command R's reads a description of each argument.
        (
            writing("<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>" + ARGUMENTS),
            "kimi_k2",
        ),
        (
            "{% for t in tools or [] %}{% for p in t.function.parameters.properties.values() %}"
            "{{ 'about: ' + p.description }}{% endfor %}{% endfor %}"
            + writing('Action:\n```json\n[{"tool_name": "{{ f.name }}", "parameters": {}}]```'),
            "command_r",
        ),
        # It writes calls, and tells the model of no tools.
        (HERMES.replace("tools", "gadgets"), "generic"),
        # It knows no tools, or refuses them.
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "generic"),
        ("{% if tools %}{{ raise_exception('no tools') }}{% endif %}", "generic"),
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
        ("{{ '<|channel|>analysis<|message|>' }}", "harmony"),
        ("{{ '[THINK]' }}", "mistral"),
        (HERMES, ""),
        (None, ""),
    ],
)
def test_the_format_of_thoughts_is_what_the_template_knows(template: object, name: str) -> None:
    assert reasoning_format(tokenizer(template)) == name


def test_there_is_no_format_without_a_tokenizer() -> None:
    assert reasoning_format(None) == tool_format(None) == ""


LOOP = "{% for message in messages %}{{ message.thinking }}{% break %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "names"),
    [
        (LOOP + "{{ bos_token }}{% if add_generation_prompt %}{{ tools }}{% endif %}", ()),
        (
            "{% if enable_thinking is defined and not enable_thinking %}x{% endif %}",
            "enable_thinking",
        ),
        (
            "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ thinking }}",
            "thinking",
        ),
        (
            "{% macro head() %}{% if reasoning_effort is not defined %}"
            "{% set reasoning_effort = 'medium' %}{% endif %}{{ reasoning_effort }}{% endmacro %}"
            "{{ head() }}{% generation %}{{ thinking_budget }}{% endgeneration %}",
            "reasoning_effort thinking_budget",
        ),
        ("{% set enable_thinking = true %}{{ enable_thinking }}", ()),
        ("{% if %}", ()),
    ],
)
def test_a_template_says_which_variables_it_reads(template: str, names: str) -> None:
    assert variables_of(tokenizer(template)) == tuple(names.split() if names else ())


def test_templates_for_tools_are_read_too() -> None:
    both = tokenizer({"default": "{{ enable_thinking }}", "tool_use": "{{ tools }}{{ thinking }}"})

    assert variables_of(both) == ("enable_thinking", "thinking")
    assert variables_of(None) == ()
