"""A client that follows one answer to its end, whatever breaks, by the documented means alone."""

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import aclosing

from tests.chaos.http.http import Answer, Disconnected, ServerSentEvent, send
from tests.chaos.http.requests import Received, Request

_PAUSE_S = 0.2
_MAX_PAUSE_S = 4.0
#: What a client repeats: too many requests, and a gateway that cannot serve just now.
_AGAIN = (429, 503)
_TERMINAL = ("response.completed", "response.incomplete", "response.failed")


class _Left(Exception):
    """The client hangs up by itself."""


class Client:
    def __init__(
        self,
        port: int,
        request: Request,
        give_up: Callable[[], bool],
        on_event: Callable[[], None],
    ) -> None:
        """`give_up`: whether nothing will come any more."""
        self._port = port
        self._request = request
        self._give_up = give_up
        self._on_event = on_event
        self._leaves = list(request.leaves_at)
        self._jitter = random.Random(request.number)
        self._failures = 0
        self.received = Received(request)

    async def run(self) -> Received:
        while not self.received.ended and not self.received.undocumented and not self._give_up():
            try:
                await (self._resume() if self.received.job_id else self._create())
            except Disconnected as error:
                self.received.retries[str(error)] += 1
                await self._pause()
            except _Left:
                await asyncio.sleep(_PAUSE_S)
        return self.received

    async def _pause(self) -> None:
        """Longer each time, until an event comes."""
        longest = min(_MAX_PAUSE_S, _PAUSE_S * 2**self._failures)
        self._failures += 1
        await asyncio.sleep(longest * self._jitter.uniform(0.5, 1.0))

    async def _create(self) -> None:
        """Again with the same key, until it is known which job it is."""
        request = self._request
        self.received.created += 1
        async with send(self._port, "POST", request.path, request.headers, request.body) as answer:
            await self._follow(answer)

    async def _resume(self) -> None:
        self.received.resumed += 1
        path, headers = self.received.resume_from(self.received.last)
        async with send(self._port, "GET", path, headers) as answer:
            await self._follow(answer)

    async def _follow(self, answer: Answer) -> None:
        if answer.status in _AGAIN:
            self.received.retries[str(answer.status)] += 1
            after = float(answer.headers.get("retry-after", 0))
            await asyncio.sleep(min(after, _MAX_PAUSE_S))
            await self._pause()
            return
        if answer.status != 200:
            said = (await answer.body()).decode(errors="replace")
            self.received.undocumented.append(f"{answer.status} {said[:300]}")
            return
        if job_id := answer.headers.get("x-rose-job-id"):
            self._is_of(job_id)
        async with aclosing(answer.events()) as events:
            async for event in events:
                if not self._take(event):
                    await self._pause()
                    return
                if self._leaves and len(self.received.frames) >= self._leaves[0]:
                    self._leaves.pop(0)
                    raise _Left
        if not self.received.ended:
            self.received.undocumented.append("the stream ended well, without its terminal event")

    def _is_of(self, job_id: str) -> None:
        if self.received.job_id not in ("", job_id):
            self.received.undocumented.append(f"it was job {self.received.job_id}, and is {job_id}")
        self.received.job_id = job_id

    def _take(self, event: ServerSentEvent) -> bool:
        """False: the stream ended with an error that says to resume it."""
        if event.data == "[DONE]":
            self.received.ended |= self._request.endpoint == "chat"
            return True
        data = json.loads(event.data)
        if "error" in data or data.get("type") == "error":
            self.received.retries["error in the stream"] += 1
            return False
        self.received.frames.append((event.id, event.data))
        self._failures = 0
        self._on_event()
        if self._request.endpoint == "response":
            if "response" in data:
                self._is_of(data["response"]["id"].removeprefix("resp_"))
            self.received.ended |= data["type"] in _TERMINAL
        return True
