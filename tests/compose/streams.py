"""Jobs in mid-sentence with subscribers, and what must be true of them in the end."""

import time
from collections.abc import Sequence

from rose_producer import Client, FinishedEvent, Job, ProducerSettings, Request, TokenEvent
from tests.support.bench import wait_until
from tests.support.listeners import Listeners

TOKENS = 250

_STORIES = ("Once upon a time", "The little dog", "One day, a girl", "In the garden", "Tom and Ben")


def requests(count: int) -> list[Request]:
    """Of about ten seconds in slow motion."""
    asked = {"max_new_tokens": TOKENS, "ignore_eos": True, "temperature": 0.8}
    return [
        Request(f"{_STORIES[n % len(_STORIES)]} {n}", sampling={**asked, "seed": n})
        for n in range(count)
    ]


class Streams:
    """Each job is streamed by a blocking and by an asyncio client. They run when it is made."""

    def __init__(self, settings: ProducerSettings, count: int = 12) -> None:
        self._began = time.monotonic()
        with Client(settings) as client:
            self.jobs: Sequence[Job] = client.submit_many(requests(count))
        self._ids = [job.id for job in self.jobs]
        self._settings = settings
        self._listeners = [Listeners(settings, job_id, timeout_s=200) for job_id in self._ids]
        wait_until(lambda: all(one.have(10) for one in self._listeners))

    @property
    def in_mid_sentence(self) -> int:
        ends = [[seen[-1].is_terminal for seen in one.seen if seen] for one in self._listeners]
        return sum(not all(end) for end in ends)

    def answers(self) -> list[tuple[int, ...]]:
        """Wait for all; both subscribers of each have seen its whole log, once and in order."""
        answers = []
        with Client(self._settings) as client:
            for job_id, listeners in zip(self._ids, self._listeners, strict=True):
                events = listeners.events()
                assert [event.index for event in events] == [
                    *(0, *(event.cursor for event in events[:-1]))
                ]
                assert [type(e) for e in events if e.is_terminal] == [FinishedEvent]
                tokens = [event for event in events if isinstance(event, TokenEvent)]
                seen = tuple(token for event in tokens for token in event.token_ids)
                result = client.job(job_id).result(120)
                assert seen == result.token_ids
                assert "".join(event.text for event in tokens) == result.text
                assert len(seen) == TOKENS
                answers.append(seen)
        return answers

    def attempts(self) -> list[int]:
        with Client(self._settings) as client:
            return [client.job(job_id).status().attempts for job_id in self._ids]
