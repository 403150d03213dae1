"""How far a run has come, read from the journals as they grow."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from rose.protocol import partition_of
from tests.chaos.journal import Tail
from tests.chaos.plan import RAW_BASE


class Progress:
    def __init__(self, folder: Path) -> None:
        self._submitted = Tail(folder, "submitted-*.jsonl")
        self._delivered = Tail(folder, "delivered-*.jsonl")
        self.submissions: list[tuple[int, str]] = []
        """number and id, as the producers wrote it down; a repeated submit stands here again"""
        self.submitted: dict[int, str] = {}
        self.delivered: dict[int, list[dict[str, Any]]] = {}
        """number: events, as its subscriber wrote them down"""
        self.ended: set[int] = set()
        self.events = Counter[int]()
        """by partition"""
        self.last_news = time.monotonic()

    @property
    def jobs_ended(self) -> int:
        """Without those that were added raw."""
        return sum(number < RAW_BASE for number in self.ended)

    @property
    def all_ended(self) -> bool:
        return self.ended.issuperset(self.submitted)

    @property
    def silent_s(self) -> float:
        """How long nothing has been delivered."""
        return time.monotonic() - self.last_news

    def running(self) -> list[int]:
        return [number for number in self.submitted if number not in self.ended]

    def update(self) -> None:
        for _, (number, job_id, _) in self._submitted.new():
            self.submissions.append((number, job_id))
            self.submitted[number] = job_id
        for _, (number, job_id, _, event) in self._delivered.new():
            self.delivered.setdefault(number, []).append(event)
            self.events[partition_of(job_id)] += 1
            self.last_news = time.monotonic()
            if event["type"] != "tokens":
                self.ended.add(number)
