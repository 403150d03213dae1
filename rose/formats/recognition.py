"""By what a format is known: how a chat template writes the call `probe_name` with the argument
`probe_key`, and the marks of thoughts in a template.
"""

from collections.abc import Mapping
from types import MappingProxyType

_NAME = r'"name":\s*"probe_name"'
_OBJECT = r'\{\s*"probe_key":\s*"probe value"\s*\}'

#: By format, the most particular first.
TOOL_PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        "harmony": r"to=functions\.probe_name",
        # Some of its templates write the call's id, and no name.
        "kimi_k2": r"<\|tool_call_begin\|>[^<]*<\|tool_call_argument_begin\|>",
        "deepseek": r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?probe_name",
        "mistral": r"\[TOOL_CALLS\]\s*(?:\[\s*\{|probe_name)",
        "command_r": r'(?:<\|START_ACTION\|>|Action:\s*```json)\s*\[\s*\{[^}]*"tool_name"',
        "function_gemma": r"<start_function_call>call:probe_name\{",
        "minimax_m2": r'<invoke name="probe_name">\s*<parameter name="probe_key">',
        "qwen3_xml": r"<function=probe_name>\s*<parameter=probe_key>",
        "glm45": r"<tool_call>\s*probe_name\s*<arg_key>probe_key</arg_key>\s*<arg_value>",
        "hermes": rf'<tool_call>\s*\{{\s*{_NAME},\s*"arguments":\s*{_OBJECT}\s*\}}\s*</tool_call>',
        "phi4": r"(?:<\|tool_call\|>\s*\[.*<\|/tool_call\|>|functools\[)",
        "granite": rf"<\|tool_call\|>\s*\[\s*\{{\s*{_NAME}",
        "pythonic": r"""\[probe_name\(probe_key=["']probe value["']\)\]""",
        "llama3_json": rf'\{{\s*{_NAME},\s*"parameters":\s*{_OBJECT}\s*\}}',
    }
)

#: What stands in a template that knows thoughts, and their format; the most particular first.
REASONING_MARKS = (
    ("<|channel|>analysis", "harmony"),
    ("[THINK]", "mistral"),
    ("<|START_THINKING|>", "command_r"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("</seed:think>", "seed"),
    ("</think>", "think"),
    ("Here is my thought process:", "granite"),
)
