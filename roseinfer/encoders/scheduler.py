"""Batches of inputs between arrivals: a step computes what waits, up to a bound of tokens.

A step takes an input of each request in turn, so a short request never waits for a long one. What
it takes is one batch if the encoder packs it, else a few padded ones of similar lengths. A request
is answered when all of its inputs are done.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rose.engine_records import Numbers, SchedulerStats, StepOutput, StepTimes, float32
from rose.errors import LogitsNotFinite
from roseinfer.encoders.encoder import Encoder
from roseinfer.encoders.tokens import EncodedInput

#: A batch ends where the next input would be padded by more than a half, unless it is small.
_SHORTEST = 0.67
_SMALL_BATCH_TOKENS = 128


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

    def __init__(self, encoder: Encoder, capacity: int, max_step_tokens: int) -> None:
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
        batches = [chosen] if self._encoder.packs and chosen else list(_batches(chosen))
        planned = time.perf_counter()
        failed = dict[str, StepOutput]()
        for batch in batches:
            self._compute(batch, failed)
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

    def _compute(self, batch: Sequence[_Chosen], failed: dict[str, StepOutput]) -> None:
        rows = self._encoder.encode([one.input for one in batch])
        finite = rows.isfinite().all(dim=1).tolist()
        for one, row, is_finite in zip(batch, rows, finite, strict=True):
            request = one.request
            if is_finite:
                shorter = self._encoder.shortened(row, request.dimensions)
                request.rows[one.number] = float32(shorter.tolist())
            else:
                failed[request.request_id] = StepOutput(
                    request.request_id, 0, (), "", "error", error=LogitsNotFinite.at(one.length)
                )

    def _complete(self) -> Iterable[StepOutput]:
        for request in self._running.values():
            if len(request.rows) == len(request.inputs):
                data = b"".join(request.rows[number] for number in range(len(request.rows)))
                numbers = Numbers(request.dimensions, data)
                yield StepOutput(request.request_id, 0, (), "", "stop", numbers=numbers)


def _batches(chosen: Sequence[_Chosen]) -> Iterable[list[_Chosen]]:
    """Of similar lengths, the longest first."""
    batch: list[_Chosen] = []
    for one in sorted(chosen, key=lambda one: -one.length):
        if batch:
            longest = batch[0].length
            is_small = longest * len(batch) < _SMALL_BATCH_TOKENS
            if one.length < _SHORTEST * longest and not is_small:
                yield batch
                batch = []
        batch.append(one)
    if batch:
        yield batch
