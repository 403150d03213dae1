"""The lines of a run, drawn from the seed, and what must be answered to each."""

import json
import random
from dataclasses import dataclass
from typing import Any, Literal

from tests.support.echo import echoed_text

Kind = Literal["good", "not JSON", "another endpoint", "unknown model"]

ENDPOINT: Literal["/v1/completions"] = "/v1/completions"

_OPENINGS = ("Grüße aus Köln", "こんにちは、世界。", "🐕 und 🐈‍⬛", "Once upon a time", "Съешь же")
#: Of a hundred lines, so many of each kind are wrong.
_WRONG: tuple[Kind, ...] = ("not JSON", "another endpoint", "unknown model")


@dataclass(frozen=True, slots=True)
class DrawnLine:
    number: int
    kind: Kind
    prompt: str
    tokens: int

    @property
    def custom_id(self) -> str:
        return f"line-{self.number}"

    @property
    def raw(self) -> str:
        if self.kind == "not JSON":
            return '{"custom_id": ' + json.dumps(self.custom_id)
        body: dict[str, Any] = {
            "model": "nobody" if self.kind == "unknown model" else "null",
            "prompt": self.prompt,
            "max_tokens": self.tokens,
        }
        url = "/v1/responses" if self.kind == "another endpoint" else ENDPOINT
        envelope = {"custom_id": self.custom_id, "method": "POST", "url": url, "body": body}
        return json.dumps(envelope)

    @property
    def text(self) -> str:
        """What the engine says."""
        return echoed_text(self.prompt, self.tokens)


def draw(seed: int, number: int) -> DrawnLine:
    """Line `number`, from 1."""
    drawn = random.Random(f"{seed}:line:{number}")
    kind: Kind = drawn.choice(_WRONG) if drawn.random() < 0.03 else "good"
    return DrawnLine(number, kind, f"{drawn.choice(_OPENINGS)} {number}", drawn.randint(1, 12))
