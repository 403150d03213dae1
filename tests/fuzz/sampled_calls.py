"""Sampled answers whose calls must fit their schemas: `python -m tests.fuzz.sampled_calls 1000`.

Logits are noise, so nothing but the grammar makes a call. A part of the answers is cut off at a
random token and goes on in a new session from its logged ids, as when a worker dies within a call.
"""

import json
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from rose.formats.parts import Arguments, CallBegun, CallEnded, joined
from rose.sampling import SamplingParams
from rose_gateway.tools.tools import Choice, Function, ToolPlan, plan_tools
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
    },
    "required": ["place", "days"],
    "additionalProperties": False,
}
FUNCTIONS = [
    Function("weather", None, _WEATHER, "tools[0].function"),
    Function("now", None, None, "tools[1].function"),
]
_SAID = ["<tool_call>", "I look. <b> <tool_call>", "<tool <tool_call>", "\n<tool_call>"]
_MOST_TOKENS = 4096


class Sampler:
    def __init__(self) -> None:
        self._tokenizer = byte_tokenizer()
        self._factory = SessionFactory(
            self._tokenizer,
            vocab_size=len(self._tokenizer),
            eos_token_ids={self._tokenizer.eos_token_id},
            context_length=_MOST_TOKENS,
        )
        self.plan: ToolPlan = plan_tools(FUNCTIONS, Choice("auto"), tool_format="hermes")

    def answer(self, seed: int, *, dies: bool) -> InferenceSession:
        """An answer with two calls. `dies`: a new session takes it over, within a call mostly."""
        noise = torch.Generator().manual_seed(seed)
        draw = random.Random(seed)
        session = self._session(seed, [])
        for _ in range(2):
            for token_id in self._tokenizer.encode(draw.choice(_SAID), add_special_tokens=False):
                session.append(token_id)
            death = draw.randrange(60) if dies else -1
            steps = 0
            while self._grammar_of(session) is not None:
                logits = torch.randn(1, len(self._tokenizer), generator=noise)
                request = session.sampling_request()
                assert request.logits_processor is not None
                process_logits(logits, [(request.logits_processor, session.num_generated)])
                session.append(int(logits.argmax()))
                steps += 1
                if steps == death:
                    session = self._session(seed, session.tokens[1:])
        return session

    def _grammar_of(self, session: InferenceSession) -> object:
        processor = session.sampling_request().logits_processor
        return processor and processor.grammar

    def _session(self, seed: int, generated: list[int]) -> InferenceSession:
        params = SamplingParams(max_new_tokens=_MOST_TOKENS, seed=seed, **self.plan.lazy)
        return self._factory.new_session([1], params=params, generated_ids=generated)


def calls_of(plan: ToolPlan, text: str) -> Iterator[tuple[str, Any]]:
    """Raises: ValueError: one is not whole."""
    parser = plan.form.parser()
    name = ""
    for part in joined(parser.feed(text) + parser.finish(cut=False)):
        match part:
            case CallBegun(_, name):
                pass
            case Arguments(_, arguments):
                yield name, json.loads(arguments)
            case CallEnded(_, False):
                raise ValueError(text)


def fits(name: str, arguments: Any) -> bool:
    """Whether it is a call that the schemas above allow."""
    if name == "now":
        return bool(arguments == {})
    known = (
        arguments.keys() <= _WEATHER["properties"].keys() and {"place", "days"} <= arguments.keys()
    )
    place, days = arguments.get("place"), arguments.get("days")
    return bool(
        name == "weather"
        and known
        and isinstance(place, str)
        and len(place) <= _WEATHER["properties"]["place"]["maxLength"]
        and type(days) is int
        and 0 <= days <= _WEATHER["properties"]["days"]["maximum"]
        and arguments.get("unit", "C") in ("C", "F")
        and all(isinstance(one, bool) for one in arguments.get("at", []))
        and len(arguments.get("at", [])) <= _WEATHER["properties"]["at"]["maxItems"]
    )


def main(answers: int) -> None:
    sampler, calls = Sampler(), 0
    for seed in range(answers):
        text = sampler.answer(seed, dies=seed % 2 == 1).text
        found = list(calls_of(sampler.plan, text))
        if len(found) != 2 or not all(fits(*call) for call in found):
            sys.exit(f"answer {seed} has a call that does not fit: {text!r}")
        calls += len(found)
    print(f"{answers} answers, {calls} calls, all fit; every second answer was taken over")


if __name__ == "__main__":
    main(int(sys.argv[1]))
