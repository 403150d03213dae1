"""A subscriber of a job on whose channel somebody else talks too."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import redis

from rose.errors import MalformedMessage, RoseError
from rose.protocol import Partition, decode_event
from rose_producer import Client
from tests.support.echo import echoed

_PROMPT, _TOKENS = "abc", 5
_WAIT_S = 120
_pool = ThreadPoolExecutor(1)


class Listener:
    """Submits a job and streams it, while `disturb` publishes on its channel."""

    def __init__(self, client: Client, raw: redis.Redis) -> None:
        self._raw = raw
        self._job = client.submit(_PROMPT, max_new_tokens=_TOKENS)
        self._channel = Partition(client.settings.queue).channel(self._job.id)
        self._forged = False
        self._result = _pool.submit(self._job.result, _WAIT_S)

    @property
    def done(self) -> bool:
        return self._result.done()

    def disturb(self, messages: Iterable[bytes]) -> None:
        pipeline = self._raw.pipeline(transaction=False)
        for message in messages:
            self._forged |= _is_an_event(message)
            pipeline.publish(self._channel, message)
        pipeline.execute()

    def verdict(self) -> str:
        """`whole`: every token, once, in order. `misled`: somebody forged an event. Else what
        went wrong."""
        try:
            error = self._result.exception(_WAIT_S)
        except TimeoutError:
            return "still waiting"
        tokens = None if error else self._result.result().token_ids
        if tokens == echoed(_PROMPT.encode(), _TOKENS):
            return "whole"
        if self._forged and (error is None or isinstance(error, RoseError)):
            return "misled"
        return f"ended with {error or tokens!r}"


def _is_an_event(message: bytes) -> bool:
    """An event of somebody else's: nobody can tell it from the job's own."""
    try:
        decode_event(message)
    except MalformedMessage:
        return False
    return True
