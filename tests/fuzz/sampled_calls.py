"""Sampled answers whose calls must fit their schemas: `python -m tests.fuzz.sampled_calls 1000`.

So many answers for each format of calls, in a vocabulary that has the format's tags as special
tokens and in one that has not. Logits are noise, so nothing but the grammar makes a call. A part of
the answers is cut off at a random token and goes on in a new session from its logged ids, as when a
worker dies within a call.
"""

import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import jsonschema
import torch

from rose.formats.parts import Arguments, CallBegun, CallEnded, joined
from rose.formats.registry import TOOL_FORMATS
from rose.sampling import SamplingParams
from rose_gateway.tools.tools import Choice, Function, TextInput, ToolPlan, plan_tools
from roseinfer.logits_processors.batch import process_logits
from roseinfer.sessions.factory import SessionFactory
from roseinfer.sessions.session import InferenceSession
from tests.roseinfer.models import byte_tokenizer

_WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "maxLength": 6},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
        "at": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "note": {"type": ["string", "null"], "maxLength": 9},
    },
    "required": ["place", "days"],
    "additionalProperties": False,
}
_ROUTE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "via": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 4}},
                "required": ["name"],
                "additionalProperties": False,
            },
            "minItems": 1,
            "maxItems": 2,
        },
        "fast": {"type": "boolean"},
        "mode": {"anyOf": [{"$ref": "#/$defs/mode"}, {"type": "null"}]},
    },
    "required": ["via", "mode"],
    "additionalProperties": False,
    "$defs": {"mode": {"type": "string", "enum": ["on foot", "by <train>", "7"]}},
}
FUNCTIONS = [
    Function("weather", None, _WEATHER, "tools[0].function"),
    Function("now", None, None, "tools[1].function"),
    Function("get-route", None, _ROUTE, "tools[2].function"),
    Function("dial", None, None, "tools[3]", text=TextInput("regex", r"\+[0-9]{2,4}(\n\"x\")?")),
]
_SCHEMAS = {function.name: function.schema for function in FUNCTIONS}
_DIALLED = r"\+[0-9]{2,4}(\n\"x\")?"
#: Texts up to the point from which noise makes the rest of a call.
_BEGUN = {
    "hermes": ["<tool_call>", "I look. <b> <tool_call>", "<tool <tool_call>", "\n<tool_call>"],
    "llama3_json": ['{"name": "', '\n{"name": "now', ""],
    "pythonic": ["[weather(", " [now(", "[dial(", "[get-route(", "<|python_start|>[weather(", ""],
    "qwen3_xml": ["<tool_call>", "Well. <tool_call>\n", "<function=", "<fun <function=get"],
    "glm45": ["<tool_call>", "Ü <tool_call>weather", "<<tool_call>\n"],
    "minimax_m2": [
        "<minimax:tool_call>\n<invoke name=",
        'So:\n<invoke name="now"',
        "<invoke name=",
    ],
    "mistral": ["[TOOL_CALLS]", "I look.[TOOL_CALLS] [", "[TOOL_CALLS]weather", "[T [TOOL_CALLS]"],
    "deepseek": ["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "Hm <｜tool▁call▁begin｜>function"],
    "kimi_k2": ["<|tool_calls_section_begin|><|tool_call_begin|>", "So <|tool_call_begin|>f"],
    "granite": ["<|tool_call|>", "I look. <|tool_call|>[", "<tool_call>", "< <tool_call>["],
    "phi4": ["<|tool_call|>", "So: <|tool_call|>[", "functools[", "func functools[{"],
    "command_r": [
        "<|START_ACTION|>",
        "<|START_ACTION|>\n[",
        "Action: ```json",
        "Action:\n```json\n",
    ],
    "function_gemma": ["<start_function_call>", "Hm<start_function_call>call:weather"],
    "harmony": [
        "<|channel|>commentary to=functions.",
        "<|channel|>final<|message|>So<|end|><|start|>assistant<|channel|>commentary to=",
        " to=functions.weather",
        "",
    ],
}
_BEGUN["generic"] = _BEGUN["hermes"]
_MOST_TOKENS = 4096
_FREE_TOKENS = 12


class Sampler:
    """Answers of a model that writes calls in one format."""

    def __init__(self, tool_format: str, *, special: bool = False, parallel: bool = True) -> None:
        """`special`: the format's tags are special tokens."""
        self._format = tool_format
        self._tokenizer = byte_tokenizer()
        if special:
            tags = [tag for tag in TOOL_FORMATS[tool_format].tags if _may_be_special(tag)]
            self._tokenizer.add_special_tokens({"additional_special_tokens": tags})
        self._factory = SessionFactory(
            self._tokenizer,
            vocab_size=len(self._tokenizer),
            eos_token_ids={self._tokenizer.eos_token_id},
            context_length=_MOST_TOKENS,
        )
        self.size = len(self._tokenizer)
        self.plan: ToolPlan = plan_tools(
            FUNCTIONS, Choice("auto"), tool_format=tool_format, parallel=parallel
        )

    def ids(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return found

    def answer(self, seed: int, *, dies: bool) -> InferenceSession:
        """An answer with calls. `dies`: a new session takes it over, within a call mostly."""
        noise = torch.Generator().manual_seed(seed)
        draw = random.Random(seed)
        session = self.session(seed, [])
        for turn in range(2):
            said = draw.choice(_BEGUN[self._format])
            if turn and self._format in ("llama3_json", "pythonic", "harmony"):
                break  # their calls are in one place
            for token_id in self.ids(said):
                session.append(token_id)
            death = draw.randrange(60) if dies else -1
            steps = free = 0
            while not session.finished and free < _FREE_TOKENS:
                logits = torch.randn(1, len(self._tokenizer), generator=noise)
                if self.grammar_of(session) is None:
                    logits[:, self._tokenizer.all_special_ids] = -torch.inf
                    free += 1
                request = session.sampling_request()
                assert request.logits_processor is not None
                process_logits(logits, [(request.logits_processor, session.num_generated)])
                session.append(int(logits.argmax()))
                steps += 1
                if steps == death:
                    session = self.session(seed, session.tokens[1:])
        return session

    def grammar_of(self, session: InferenceSession) -> object:
        processor = session.sampling_request().logits_processor
        return processor and processor.grammar

    def session(
        self, seed: int, generated: list[int], *, prompt: Sequence[int] = (1,), **more: Any
    ) -> InferenceSession:
        """One that goes on from `generated`. `more`: fields of SamplingParams."""
        fields = {**self.plan.lazy, **self.plan.form.sampling, **more}
        params = SamplingParams(
            max_new_tokens=_MOST_TOKENS, seed=seed, stop=self.plan.stop, **fields
        )
        return self._factory.new_session(prompt, params=params, generated_ids=generated)


def _may_be_special(tag: str) -> bool:
    """Not what is the beginning of something, as `<function=`, or a word."""
    return tag[0] in "<[" and tag[-1] in ">]" and len(tag) > 1


@lru_cache(maxsize=64)
def sampler(tool_format: str, *, special: bool) -> Sampler:
    return Sampler(tool_format, special=special)


def calls_of(plan: ToolPlan, text: str) -> Iterator[tuple[str, Any]]:
    """The whole ones: the last may have been cut off by the most tokens."""
    parser = plan.form.parser()
    name = arguments = ""
    for part in joined(parser.feed(text) + parser.finish(cut=False)):
        match part:
            case CallBegun(_, name):
                arguments = ""
            case Arguments(_, arguments):
                pass
            case CallEnded(_, True):
                yield name, json.loads(arguments)


def fits(name: str, arguments: Any) -> bool:
    """Whether it is a call that the schemas above allow."""
    if name == "dial":
        return re.fullmatch(_DIALLED, arguments["input"]) is not None
    return bool(jsonschema.Draft202012Validator(_SCHEMAS[name]).is_valid(arguments))


def main(answers: int) -> None:
    for tool_format in TOOL_FORMATS:
        calls = 0
        for special in (False, True):
            made = sampler(tool_format, special=special)
            for seed in range(answers):
                session = made.answer(seed, dies=seed % 2 == 1)
                found = list(calls_of(made.plan, session.text))
                if session.error is not None or not all(fits(*call) for call in found):
                    sys.exit(f"{tool_format}, answer {seed}: {session.text!r}: {session.error}")
                calls += len(found)
        print(f"{tool_format}: {2 * answers} answers, {calls} calls, all fit")
    print("every second answer was taken over")


if __name__ == "__main__":
    main(int(sys.argv[1]))
