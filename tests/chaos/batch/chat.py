"""A chat beside a batch: one answer after another, streamed by any gateway that lives."""

import json
import random
import threading
import time
from collections.abc import Sequence
from typing import Any, Self

import httpx2 as httpx

from rose_cli.local.services import GatewayProcess
from tests.support.echo import echoed_text

_PROMPT, _TOKENS = "Once upon a time", 50
_PAUSE_S = 0.2


class Chat:
    """Leaving the context ends it."""

    def __init__(self, gateways: Sequence[GatewayProcess], model: str, seed: int) -> None:
        self._gateways, self._model = gateways, model
        self._draw = random.Random(f"{seed}:chat")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chat")
        self._gaps: list[float] = []
        """seconds between two tokens of an answer"""
        self._answers = self._broken = 0
        self.wrong: list[str] = []
        """answers that are not the prompt's"""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def start(self) -> None:
        self._thread.start()

    def take(self) -> dict[str, Any]:
        """What it was like since the last call."""
        gaps, self._gaps = sorted(self._gaps), []
        answers, broken, self._answers, self._broken = self._answers, self._broken, 0, 0
        ranks = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
        shares = {
            f"{name} s": round(gaps[int(share * (len(gaps) - 1))], 4)
            for name, share in ranks.items()
            if gaps
        }
        return {"answers": answers, "broken off": broken, "gaps": len(gaps), **shares}

    def _run(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self._over.is_set():
                try:
                    self._answer(client, self._draw.choice(self._gateways).url)
                    self._answers += 1
                except (httpx.HTTPError, _Refused):  # its gateway was killed
                    self._broken += 1
                    time.sleep(_PAUSE_S)

    def _answer(self, client: httpx.Client, url: str) -> None:
        """Raises: HTTPError, _Refused"""
        body = {"model": self._model, "prompt": _PROMPT, "max_tokens": _TOKENS, "stream": True}
        text, before = "", 0.0
        with client.stream("POST", f"{url}/completions", json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                raise _Refused
            for line in answer.iter_lines():
                data = line.removeprefix("data: ")
                if data == line or data == "[DONE]":
                    continue
                choices = json.loads(data)["choices"]
                if choices and choices[0]["text"]:
                    text += choices[0]["text"]
                    now = time.monotonic()
                    if before:
                        self._gaps.append(now - before)
                    before = now
        if text != echoed_text(_PROMPT, _TOKENS):
            self.wrong.append(text[:200])


class _Refused(Exception):
    """A gateway has not taken the request."""
