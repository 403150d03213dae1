"""A subscriber of a job on whose channel somebody else talks too."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import redis

from rose.errors import MalformedMessage, RoseError
from rose.protocol import Partition, decode_event
from rose_producer import Client
from tests.support.echo import echoed

_PROMPT, _TOKENS = "abc", 5
_WAIT_S = 120


class Listener:
    """Submits a job and streams it, while `disturb` publishes on its channel."""

    def __init__(self, client: Client, raw: redis.Redis) -> None:
        self._raw = raw
        self._job = client.submit(_PROMPT, max_new_tokens=_TOKENS)
        self._channel = Partition(client.settings.queue).channel(self._job.id)
        self._outcome: Any = None
        self._forged = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def disturb(self, messages: Iterable[bytes]) -> None:
        pipeline = self._raw.pipeline(transaction=False)
        for message in messages:
            self._forged |= _is_an_event(message)
            pipeline.publish(self._channel, message)
        pipeline.execute()

    def verdict(self) -> str:
        """`whole`: every token, once, in order. `misled`: somebody forged an event. Else what
        went wrong."""
        self._thread.join(_WAIT_S)
        if self._thread.is_alive():
            return "still waiting"
        if self._outcome == echoed(_PROMPT.encode(), _TOKENS):
            return "whole"
        if self._forged and isinstance(self._outcome, tuple | RoseError):
            return "misled"
        return f"ended with {self._outcome!r}"

    def _listen(self) -> None:
        try:
            self._outcome = self._job.result(_WAIT_S).token_ids
        except Exception as error:  # noqa: BLE001 - which one is what we want to know
            self._outcome = error


def _is_an_event(message: bytes) -> bool:
    """An event of somebody else's: nobody can tell it from the job's own."""
    try:
        decode_event(message)
    except MalformedMessage:
        return False
    return True
