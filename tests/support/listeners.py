"""Subscribers in the background, one with each client, and what they must have seen."""

import asyncio
import threading
from collections.abc import Callable, Sequence

from rose_producer import AsyncClient, Client, Event, FinishedEvent, ProducerSettings, TokenEvent
from tests.support.echo import echoed, echoed_text


class Listeners:
    """Stream a job twice at once: with the sync and with the async client."""

    def __init__(self, settings: ProducerSettings, job_id: str, timeout_s: float = 90) -> None:
        self._settings = settings
        self._job_id = job_id
        self._timeout_s = timeout_s
        self.seen: tuple[list[Event], list[Event]] = ([], [])
        self.errors: list[Exception] = []
        ways: list[Callable[[], None]] = [self._sync, lambda: asyncio.run(self._async())]
        self._threads = [
            threading.Thread(target=self._run, args=(way,), daemon=True) for way in ways
        ]
        for thread in self._threads:
            thread.start()

    def have(self, tokens: int) -> bool:
        """Both have as many tokens, or have failed."""
        return bool(self.errors) or all(len(events) >= tokens for events in self.seen)

    def join(self) -> None:
        """Wait for the end of both streams."""
        for thread in self._threads:
            thread.join(self._timeout_s + 20)
            assert not thread.is_alive(), "a stream hangs"

    def events(self) -> list[Event]:
        """Of both: they have seen the same, to the end."""
        self.join()
        assert not self.errors, self.errors
        assert self.seen[0] == self.seen[1]
        return self.seen[0]

    def _run(self, way: Callable[[], None]) -> None:
        try:
            way()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.errors.append(error)

    def _sync(self) -> None:
        with Client(self._settings) as client:
            for event in client.job(self._job_id).stream(timeout_s=self._timeout_s):
                self.seen[0].append(event)

    async def _async(self) -> None:
        async with AsyncClient(self._settings) as client:
            async for event in client.job(self._job_id).stream(timeout_s=self._timeout_s):
                self.seen[1].append(event)


def assert_echo(events: Sequence[Event], prompt: str, count: int) -> None:
    """The null engine's whole answer, once and in order."""
    assert_echo_until(events, prompt, FinishedEvent)
    assert events[-1].index == count


def assert_echo_until(events: Sequence[Event], prompt: str, end: type[Event]) -> None:
    """The null engine's answer as far as it came, once and in order."""
    assert [event.index for event in events] == [0, *(event.cursor for event in events[:-1])]
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    expected = list(echoed(prompt.encode(), events[-1].index))
    assert [token_id for event in tokens for token_id in event.token_ids] == expected
    assert "".join(event.text for event in tokens) == echoed_text(prompt, events[-1].index)
    assert [type(event) for event in events if event.is_terminal] == [end]
