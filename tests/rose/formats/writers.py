"""How each family writes an answer: what a model of it would say, for transcripts of our own."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rose.formats.argument_types import types_of
from rose.formats.parts import Arguments, CallBegun, CallEnded, Part, Text, Thought


class Call(NamedTuple):
    name: str
    arguments: Mapping[str, Any]


class Answer(NamedTuple):
    thought: str = ""
    text: str = ""
    calls: Sequence[Call] = ()


SCHEMAS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "place": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "where": {"type": "object"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "note": {"type": ["string", "null"]},
        },
    },
    "now": {"type": "object", "properties": {}},
}
NAMES = frozenset(SCHEMAS)
TYPES = {name: types_of(schema) for name, schema in SCHEMAS.items()}

_PLACES = [
    "Oslo",
    "",
    "Þórshöfn 🦊",
    'a "quoted" \\ one',
    "two\nlines",
    "<b>&amp;</b>",
    "{[(,)]}",
    " x ",
]
_ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"days": 3},
    {"place": "Oslo", "days": -1, "exact": True},
    {"where": {"lat": 1.5, "names": ["a", {"b": None}], "in": {"deep": {"er": [[1], []]}}}},
    {"tags": ["a", "b, c", "}", "]"], "exact": False},
    {"note": None, "place": "12"},
    {"note": "null and void", "tags": []},
    *({"place": place} for place in _PLACES),
]
_TEXTS = ["I look.", "Ü < 1 [2] {3}\n\nand (so) on: 🦊", "two\n\nparagraphs"]
_THOUGHTS = ["Hm.", "1 < 2,\n\nso [a] {b} 🦊 </b>", "What\nnow?"]

ANSWERS = [
    *(Answer(calls=[Call("weather", arguments)]) for arguments in _ARGUMENTS),
    *(Answer(text=text) for text in _TEXTS),
    *(Answer(thought, text) for thought in _THOUGHTS for text in _TEXTS),
    *(Answer(thought, "", [Call("now", {})]) for thought in _THOUGHTS),
    *(Answer("", text, [Call("weather", _ARGUMENTS[2])]) for text in _TEXTS),
    *(Answer("Hm.", "", [Call("weather", a), Call("now", {})]) for a in _ARGUMENTS[1:6]),
    *(Answer("", "", [Call("weather", a)] * number) for number in (2, 3) for a in _ARGUMENTS[:4]),
    Answer("Hm.", "All:", [Call("weather", a) for a in _ARGUMENTS]),
    Answer("", "", [Call("now", {})] * 8),
]


def parts_of(answer: Answer) -> list[Part]:
    """What a parser must find. Arguments are compared as values."""
    parts: list[Part] = []
    if answer.thought:
        parts.append(Thought(answer.thought))
    if answer.text:
        parts.append(Text(answer.text))
    for number, call in enumerate(answer.calls):
        parts += [CallBegun(number, call.name), Arguments(number, dict(call.arguments))]
        parts.append(CallEnded(number, complete=True))
    return parts


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _tagged(thought: str, opening: str = "<think>", closing: str = "</think>") -> str:
    return f"{opening}\n{thought}\n{closing}\n\n" if thought else ""


def _list(calls: Sequence[Call], name: str = "name", arguments: str = "arguments") -> str:
    return _json([{name: call.name, arguments: call.arguments} for call in calls])


def _hermes(answer: Answer) -> str:
    calls = [
        f"<tool_call>\n{_json({'name': c.name, 'arguments': c.arguments})}\n</tool_call>"
        for c in answer.calls
    ]
    return _tagged(answer.thought) + "\n".join([answer.text, *calls] if answer.text else calls)


def _llama3(answer: Answer) -> str:
    calls = [_json({"name": c.name, "parameters": c.arguments}) for c in answer.calls]
    return _tagged(answer.thought) + (answer.text or "; ".join(calls))


def _pythonic(answer: Answer) -> str:
    calls = [
        f"{c.name}({', '.join(f'{k}={v!r}' for k, v in c.arguments.items())})" for c in answer.calls
    ]
    return _tagged(answer.thought) + (answer.text or f"[{', '.join(calls)}]")


def _qwen3(answer: Answer) -> str:
    written = [answer.text] if answer.text else []
    for call in answer.calls:
        values = "".join(
            f"<parameter={k}>\n{_as_text(v)}\n</parameter>\n" for k, v in call.arguments.items()
        )
        written.append(f"<tool_call>\n<function={call.name}>\n{values}</function>\n</tool_call>")
    return _tagged(answer.thought) + "\n\n".join(written)


def _glm(answer: Answer) -> str:
    written = [answer.text] if answer.text else []
    for call in answer.calls:
        values = "".join(
            f"<arg_key>{k}</arg_key>\n<arg_value>{_as_text(v)}</arg_value>\n"
            for k, v in call.arguments.items()
        )
        written.append(f"<tool_call>{call.name}\n{values}</tool_call>")
    return _tagged(answer.thought) + "\n".join(written)


def _minimax(answer: Answer) -> str:
    invoked = ""
    for call in answer.calls:
        values = "".join(
            f'<parameter name="{k}">{_as_text(v)}</parameter>\n' for k, v in call.arguments.items()
        )
        invoked += f'<invoke name="{call.name}">\n{values}</invoke>\n'
    calls = f"\n<minimax:tool_call>\n{invoked}</minimax:tool_call>" if invoked else ""
    return _tagged(answer.thought) + answer.text + calls


def _old_mistral(answer: Answer) -> str:
    calls = f"[TOOL_CALLS] {_list(answer.calls)}" if answer.calls else ""
    return _tagged(answer.thought, "[THINK]", "[/THINK]") + answer.text + calls


def _new_mistral(answer: Answer) -> str:
    calls = [f"[TOOL_CALLS]{c.name}[ARGS]{_json(c.arguments)}" for c in answer.calls]
    return _tagged(answer.thought, "[THINK]", "[/THINK]") + answer.text + "".join(calls)


def _deepseek(answer: Answer, call: Callable[[Call], str]) -> str:
    begin, end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    calls = "".join(begin + call(one) + end for one in answer.calls)
    if calls:
        calls = f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>"
    return _tagged(answer.thought) + answer.text + calls


def _deepseek_v3(answer: Answer) -> str:
    return _deepseek(
        answer,
        lambda c: f"function<｜tool▁sep｜>{c.name}\n```json\n{_json(c.arguments)}\n```",
    )


def _deepseek_v31(answer: Answer) -> str:
    return _deepseek(answer, lambda c: f"{c.name}<｜tool▁sep｜>{_json(c.arguments)}")


def _kimi(answer: Answer) -> str:
    calls = "".join(
        f"<|tool_call_begin|>functions.{c.name}:{number}<|tool_call_argument_begin|>"
        f"{_json(c.arguments)}<|tool_call_end|>"
        for number, c in enumerate(answer.calls)
    )
    if calls:
        calls = f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"
    return _tagged(answer.thought) + answer.text + calls


def _granite(answer: Answer) -> str:
    calls = f"<|tool_call|>{_list(answer.calls)}" if answer.calls else ""
    thought = _tagged(answer.thought, "Here is my thought process:", "Here is my response:")
    return thought + answer.text + calls


def _phi4(answer: Answer) -> str:
    calls = f"<|tool_call|>{_list(answer.calls)}<|/tool_call|>" if answer.calls else ""
    return _tagged(answer.thought) + answer.text + calls


def _phi4_functools(answer: Answer) -> str:
    calls = f"functools{_list(answer.calls)}" if answer.calls else ""
    return _tagged(answer.thought) + answer.text + calls


def _command_r(answer: Answer) -> str:
    said = f"<|START_RESPONSE|>{answer.text}<|END_RESPONSE|>" if answer.text else ""
    objects = [
        {"tool_call_id": str(number), "tool_name": c.name, "parameters": c.arguments}
        for number, c in enumerate(answer.calls)
    ]
    calls = f"<|START_ACTION|>{json.dumps(objects, indent=4)}<|END_ACTION|>" if objects else ""
    thought = answer.thought and f"<|START_THINKING|>{answer.thought}<|END_THINKING|>"
    return thought + said + calls


def _command_r_plus(answer: Answer) -> str:
    calls = _list(answer.calls, "tool_name", "parameters")
    said = f"Action: ```json\n{calls}\n```" if answer.calls else ""
    return _tagged(answer.thought, "<|START_THINKING|>", "<|END_THINKING|>") + answer.text + said


def _function_gemma(answer: Answer) -> str:
    def value(one: Any) -> str:
        match one:
            case str():
                return f"<escape>{one}<escape>"
            case dict():
                return "{" + ",".join(f"{k}:{value(v)}" for k, v in one.items()) + "}"
            case list():
                return "[" + ",".join(map(value, one)) + "]"
        return _json(one)

    calls = [
        f"<start_function_call>call:{c.name}{value(dict(c.arguments))}<end_function_call>"
        for c in answer.calls
    ]
    return _tagged(answer.thought) + answer.text + "".join(calls)


def _harmony(answer: Answer) -> str:
    messages = []
    if answer.thought:
        messages.append(f"<|channel|>analysis<|message|>{answer.thought}<|end|>")
    if answer.text:
        channel = "commentary" if answer.calls else "final"
        end = "<|end|>" if answer.calls else "<|return|>"
        messages.append(f"<|channel|>{channel}<|message|>{answer.text}{end}")
    messages += [
        f"<|channel|>commentary to=functions.{c.name} <|constrain|>json<|message|>"
        f"{_json(c.arguments)}<|call|>"
        for c in answer.calls
    ]
    return "<|start|>assistant".join(messages)


class Family(NamedTuple):
    write: Callable[[Answer], str]
    tool_format: str
    reasoning_format: str = "think"
    text_beside_calls: bool = True


FAMILIES = {
    "hermes": Family(_hermes, "hermes"),
    "llama3_json": Family(_llama3, "llama3_json", text_beside_calls=False),
    "pythonic": Family(_pythonic, "pythonic", text_beside_calls=False),
    "qwen3_xml": Family(_qwen3, "qwen3_xml"),
    "glm45": Family(_glm, "glm45"),
    "minimax_m2": Family(_minimax, "minimax_m2"),
    "mistral, old": Family(_old_mistral, "mistral", "mistral"),
    "mistral, new": Family(_new_mistral, "mistral", "mistral"),
    "deepseek v3": Family(_deepseek_v3, "deepseek"),
    "deepseek v3.1": Family(_deepseek_v31, "deepseek"),
    "kimi_k2": Family(_kimi, "kimi_k2", "kimi_k2"),
    "granite": Family(_granite, "granite", "granite"),
    "phi4": Family(_phi4, "phi4"),
    "phi4, functools": Family(_phi4_functools, "phi4"),
    "command_r7b": Family(_command_r, "command_r", "command_r"),
    "command_r_plus": Family(_command_r_plus, "command_r", "command_r"),
    "function_gemma": Family(_function_gemma, "function_gemma"),
    "harmony": Family(_harmony, "harmony", "harmony"),
    "generic": Family(_hermes, "generic"),
}
