"""The lines of a run, drawn from the seed, and what must be answered to each."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.support.echo import echoed_text

Kind = Literal["good", "not JSON", "another endpoint", "unknown model"]

Endpoint = Literal["/v1/completions", "/v1/embeddings"]

_OPENINGS = ("Grüße aus Köln", "こんにちは、世界。", "🐕 und 🐈‍⬛", "Once upon a time", "Съешь же")
#: Of a hundred lines, so many of each kind are wrong.
_WRONG: tuple[Kind, ...] = ("not JSON", "another endpoint", "unknown model")


@dataclass(frozen=True, slots=True)
class DrawnLine:
    number: int
    kind: Kind
    prompt: str
    tokens: int
    endpoint: Endpoint = "/v1/completions"
    model: str = "null"

    @property
    def custom_id(self) -> str:
        return f"line-{self.number}"

    @property
    def raw(self) -> str:
        if self.kind == "not JSON":
            return '{"custom_id": ' + json.dumps(self.custom_id)
        body: dict[str, Any] = {"model": "nobody" if self.kind == "unknown model" else self.model}
        if self.endpoint == "/v1/embeddings":
            body |= {"input": self.texts, "encoding_format": self.encoding_format}
        else:
            body |= {"prompt": self.prompt, "max_tokens": self.tokens}
        url = "/v1/responses" if self.kind == "another endpoint" else self.endpoint
        envelope = {"custom_id": self.custom_id, "method": "POST", "url": url, "body": body}
        return json.dumps(envelope)

    @property
    def text(self) -> str:
        """What the engine says."""
        return echoed_text(self.prompt, self.tokens)

    @property
    def texts(self) -> Sequence[str]:
        """Of embeddings, one to three."""
        return [f"{self.prompt} {n}" for n in range(1 + self.tokens % 3)]

    @property
    def encoding_format(self) -> str:
        return ("float", "base64")[self.number % 2]


def draw(seed: int, number: int, endpoint: Endpoint, model: str) -> DrawnLine:
    """Line `number`, from 1."""
    drawn = random.Random(f"{seed}:line:{number}")
    kind: Kind = drawn.choice(_WRONG) if drawn.random() < 0.03 else "good"
    prompt = f"{drawn.choice(_OPENINGS)} {number}"
    return DrawnLine(number, kind, prompt, drawn.randint(1, 12), endpoint, model)
