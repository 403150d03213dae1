"""The clients' requests, drawn from the seed, and what they have received."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.support.echo import echoed_text

Endpoint = Literal["response", "chat"]

_OPENINGS = (
    "Grüße aus Köln, naïve Zoë: ½ café",
    "こんにちは、世界。",
    "🐕 und 🐈‍⬛ gehen spazieren",
    "Once upon a time",
    "Съешь же ещё этих мягких булок",
)
_MODEL = "null"


@dataclass(frozen=True, slots=True)
class Request:
    number: int
    endpoint: Endpoint
    prompt: str
    tokens: int
    leaves_at: tuple[int, ...]
    """events after which its client hangs up by itself, and comes back"""

    @property
    def path(self) -> str:
        return "/v1/responses" if self.endpoint == "response" else "/v1/chat/completions"

    @property
    def headers(self) -> dict[str, str]:
        headers = {"idempotency-key": f"chaos-{self.number}"}
        if self.endpoint == "chat":
            headers["x-rose-on-disconnect"] = "continue"
        return headers

    @property
    def body(self) -> dict[str, Any]:
        if self.endpoint == "response":
            return {
                "model": _MODEL,
                "input": self.prompt,
                "max_output_tokens": self.tokens,
                "background": True,
                "stream": True,
            }
        return {
            "model": _MODEL,
            "messages": [{"role": "user", "content": self.prompt}],
            "max_completion_tokens": self.tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    @property
    def text(self) -> str:
        """The text that the engine generates."""
        return echoed_text(self.prompt, self.tokens)


@dataclass(slots=True)
class Received:
    """What a client has received for one request: whole events only, in their order."""

    request: Request
    job_id: str = ""
    frames: list[tuple[str, str]] = field(default_factory=list)
    """id and data of each event"""
    ended: bool = False
    """the terminal event has come"""
    resumed: int = 0
    """times that it came back"""
    created: int = 0
    """times that it sent the request that makes the job"""
    retries: Counter[str] = field(default_factory=Counter)
    """times that it was sent away or lost the connection, by reason"""
    undocumented: list[str] = field(default_factory=list)
    """answers that are not documented for this"""

    @property
    def last(self) -> str | None:
        """The id of the last event."""
        return self.frames[-1][0] if self.frames else None

    def resume_from(self, event_id: str | None) -> tuple[str, dict[str, str]]:
        """Path and headers of the request for what follows this event; None: for all."""
        if self.request.endpoint == "response":
            after = "" if event_id is None else f"&starting_after={event_id}"
            return f"/v1/responses/resp_{self.job_id}?stream=true{after}", {}
        headers = {} if event_id is None else {"last-event-id": event_id}
        return f"/v1/jobs/{self.job_id}/events", headers


def draw(seed: int, number: int, responses: int, chats: int) -> Request:
    """Request `number` of so many; from there on they go on in the same proportion."""
    drawn = random.Random(f"{seed}:ask:{number}")
    is_response = drawn.random() < responses / (responses + chats)
    if number < responses + chats:
        order = random.Random(f"{seed}:endpoints")
        endpoints = ["response"] * responses + ["chat"] * chats
        order.shuffle(endpoints)
        is_response = endpoints[number] == "response"
    tokens = drawn.choice((drawn.randint(1, 12), drawn.randint(15, 60), drawn.randint(60, 140)))
    leaves = drawn.choice((0, 0, 0, 1, 2))
    return Request(
        number,
        "response" if is_response else "chat",
        f"{drawn.choice(_OPENINGS)} {number}",
        tokens,
        tuple(sorted(drawn.randint(1, tokens + 4) for _ in range(leaves))),
    )
