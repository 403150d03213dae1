"""How far a run has come, read from the journals as they grow.

What a job was given is kept until it is settled: what a run holds must not grow with its length.
"""

import time
from collections import Counter
from pathlib import Path
from typing import Any

from rose.protocol import partition_of
from tests.chaos.findings import Finding
from tests.chaos.invariants import Invariant
from tests.chaos.job_record import Summary
from tests.chaos.journal import Tail
from tests.chaos.plan import RAW_BASE


class Progress:
    def __init__(self, folder: Path, producers: int = 1) -> None:
        self._submitted = Tail(folder, "submitted-*.jsonl")
        self._delivered = Tail(folder, "delivered-*.jsonl")
        self._producers = producers
        self._latest = dict.fromkeys(range(producers), -1)
        self._running: dict[int, None] = {}
        self._known = 0
        self.submissions: list[tuple[int, str]] = []
        """number and id, as the producers wrote it down; a repeated submit stands here again"""
        self.submitted: dict[int, str] = {}
        self.numbers: dict[str, int] = {}
        """of the jobs with these ids"""
        self.delivered: dict[int, list[dict[str, Any]]] = {}
        """number: events, as its subscriber wrote them down; of jobs that are not settled"""
        self.settled: dict[int, Summary] = {}
        self.ended: dict[int, float] = {}
        """number: when its end became known, by the monotonic clock"""
        self.jobs_ended = 0
        """without those that were added past the client"""
        self.events = Counter[int]()
        """by partition"""
        self.late: list[Finding] = []
        """what was delivered of settled jobs"""
        self.last_news = time.monotonic()

    @property
    def all_ended(self) -> bool:
        return not self._running

    @property
    def silent_s(self) -> float:
        """How long nothing has been delivered."""
        return time.monotonic() - self.last_news

    def running(self) -> list[int]:
        return list(self._running)

    def knows(self, limit: int) -> bool:
        """Whether all jobs below this number have been submitted."""
        while self._known in self.submitted:
            self._known += 1
        return self._known >= limit

    def latest(self, number: int) -> int:
        """The last job that the producer of job `number` has submitted."""
        return self._latest[number % self._producers]

    def settle(self, number: int, summary: Summary) -> None:
        """Keep this of a job that is over for good."""
        del self.delivered[number]
        self.settled[number] = summary

    def update(self) -> None:
        for _, (number, job_id, _) in self._submitted.new():
            self.submissions.append((number, job_id))
            self.submitted[number] = job_id
            self.numbers[job_id] = number
            if number not in self.ended:
                self._running[number] = None
            if number < RAW_BASE:
                producer = number % self._producers
                self._latest[producer] = max(self._latest[producer], number)
        for _, (number, job_id, _, event) in self._delivered.new():
            self._deliver(number, event)
            self.events[partition_of(job_id)] += 1
            self.last_news = time.monotonic()

    def _deliver(self, number: int, event: dict[str, Any]) -> None:
        if number in self.settled:
            detail = f"{event['type']} came long after the terminal event"
            self.late.append(Finding(Invariant.ENDS, detail, number))
            return
        self.delivered.setdefault(number, []).append(event)
        if event["type"] != "tokens" and number not in self.ended:
            self.ended[number] = time.monotonic()
            self.jobs_ended += number < RAW_BASE
            self._running.pop(number, None)
