"""A job in mid-sentence and its subscribers, while something befalls Redis."""

from typing import Any

from rose_producer import CancelledEvent, Client, ProducerSettings
from tests.support.bench import wait_until
from tests.support.listeners import Listeners, assert_echo, assert_echo_until

QUEUE = "trouble"
PROMPT = "the quick brown fox"
STEP_S = 0.01

#: Impatient, so that calls are repeated during a trouble and not only after it.
IMPATIENT: dict[str, Any] = {"redis_timeout_s": 1, "redis_retries": 1}

#: In slow motion.
WORKER_SETTINGS: dict[str, Any] = {"queue": QUEUE, "min_step_s": STEP_S, **IMPATIENT}


def settings(url: str) -> ProducerSettings:
    return ProducerSettings(redis_url=url, queue=QUEUE, poll_interval_s=0.5, **IMPATIENT)


class Stream:
    """Whose job goes on while `with` something happens, and whose events are held to the echo."""

    def __init__(self, client: Client, url: str, tokens: int) -> None:
        self.tokens = tokens
        self.job = client.submit(PROMPT, max_new_tokens=tokens)
        self.listeners = Listeners(settings(url), self.job.id)
        wait_until(lambda: self.listeners.have(10))

    def assert_complete(self) -> None:
        assert_echo(self.listeners.events(), PROMPT, self.tokens)

    def assert_goes_on(self) -> None:
        """And lacks nothing, until it is cancelled."""
        most = max(map(len, self.listeners.seen))
        wait_until(lambda: self.listeners.have(most + 20))
        assert self.job.cancel()
        events = self.listeners.events()
        assert_echo_until(events, PROMPT, CancelledEvent)
        assert len(events) > most + 20
