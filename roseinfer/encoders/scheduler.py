"""Batches of inputs between arrivals: a step computes what waits, up to a bound of tokens.

A step takes an input of each request in turn, so a short request never waits for a long one. A
request is answered when all of its inputs are done.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from rose.engine_records import Numbers, SchedulerStats, StepOutput, StepTimes, float32
from rose.errors import LogitsNotFinite
from roseinfer.encoders.tokens import EncodedInput, InputTokenizer


class AnyEncoder(Protocol):
    """A model that embeds or scores: see Encoder."""

    name: str
    device: str
    dtype: str
    fingerprint: str
    max_tokens: int
    width: int
    tokenizer: InputTokenizer

    def encode(self, inputs: Sequence[EncodedInput]) -> Tensor:
        """A row of float32 on the CPU for each input."""

    def shortened(self, rows: Tensor, dimensions: int) -> Tensor: ...


@dataclass(slots=True)
class EncodingRequest:
    """`dimensions`: of each row, at most the model's."""

    request_id: str
    inputs: Sequence[EncodedInput]
    dimensions: int
    rows: dict[int, bytes] = field(default_factory=dict)
    """those that are done, by the number of their input"""
    order: list[int] = field(init=False)
    """numbers of the inputs that are left, the longest last"""

    def __post_init__(self) -> None:
        self.order = sorted(range(len(self.inputs)), key=lambda n: len(self.inputs[n].ids))


@dataclass(frozen=True, slots=True)
class _Chosen:
    request: EncodingRequest
    number: int

    @property
    def input(self) -> EncodedInput:
        return self.request.inputs[self.number]

    @property
    def length(self) -> int:
        return len(self.input.ids)


class EncodingScheduler:
    """Belongs to one thread."""

    def __init__(self, encoder: AnyEncoder, capacity: int, max_step_tokens: int) -> None:
        """`capacity`: requests at a time."""
        self._encoder = encoder
        self.capacity = capacity
        self._max_step_tokens = max_step_tokens
        self._running: dict[str, EncodingRequest] = {}
        self._tokens = self._batch_size = 0
        self._times = StepTimes()

    @property
    def has_unfinished(self) -> bool:
        return bool(self._running)

    def add(self, request: EncodingRequest) -> None:
        """No request of this id is here."""
        self._running[request.request_id] = request

    def abort(self, request_id: str) -> None:
        """Unknown ids are ignored."""
        self._running.pop(request_id, None)

    def step(self, only: str | None = None) -> list[StepOutput]:
        """Compute the next inputs of every request, or of `only` one. Returns the answers to those
        that are complete."""
        began = time.perf_counter()
        chosen = self._choose(only)
        planned = time.perf_counter()
        failed = self._compute(chosen) if chosen else {}
        computed = time.perf_counter()
        self._batch_size = len(chosen)
        self._tokens += sum(one.length for one in chosen)
        outputs = [*failed.values(), *self._complete()]
        for output in outputs:
            self._running.pop(output.request_id, None)
        self._times = StepTimes(
            schedule=planned - began,
            forward=computed - planned,
            postprocess=time.perf_counter() - computed,
        )
        return outputs

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            running=len(self._running),
            capacity=self.capacity,
            prompt_tokens=self._tokens,
            batch_size=self._batch_size,
            step_times=self._times,
        )

    def _choose(self, only: str | None) -> list[_Chosen]:
        waiting = [one for name, one in self._running.items() if only in (None, name)]
        chosen: list[_Chosen] = []
        tokens = 0
        while waiting:
            for request in waiting:
                length = len(request.inputs[request.order[-1]].ids)
                if chosen and tokens + length > self._max_step_tokens:
                    return self._rotated(chosen)
                chosen.append(_Chosen(request, request.order.pop()))
                tokens += length
            waiting = [request for request in waiting if request.order]
        return chosen

    def _rotated(self, chosen: list[_Chosen]) -> list[_Chosen]:
        """Who came last is first at the next step, where not all had a turn."""
        served = {one.request.request_id for one in chosen}
        if len(served) < len(self._running):
            last = {name: one for name, one in self._running.items() if name in served}
            first = {name: one for name, one in self._running.items() if name not in served}
            self._running = first | last
        return chosen

    def _compute(self, chosen: Sequence[_Chosen]) -> dict[str, StepOutput]:
        """The ends of requests that fail."""
        failed: dict[str, StepOutput] = {}
        rows = self._encoder.encode([one.input for one in chosen])
        finite = rows.isfinite().all(dim=1).tolist()
        for one, row, is_finite in zip(chosen, rows, finite, strict=True):
            request = one.request
            if is_finite:
                shorter = self._encoder.shortened(row, request.dimensions)
                request.rows[one.number] = float32(shorter.tolist())
            else:
                failed[request.request_id] = StepOutput(
                    request.request_id, 0, (), "", "error", error=LogitsNotFinite.at(one.length)
                )
        return failed

    def _complete(self) -> Iterable[StepOutput]:
        for request in self._running.values():
            if len(request.rows) == len(request.inputs):
                data = b"".join(request.rows[number] for number in range(len(request.rows)))
                numbers = Numbers(request.dimensions, data)
                yield StepOutput(request.request_id, 0, (), "", "stop", numbers=numbers)
