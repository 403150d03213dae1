"""The logits processors of all requests of a step at once.

    repetition penalty -> frequency and presence penalty -> logit bias -> banned tokens -> grammar
    -> the end of a thought

Banned are ends that come too early and tokens that would repeat an n-gram. Where no other token is
left, by the grammar or at all, there is no ban. Only the entries that change are touched: a penalty
touches one logit for each distinct token.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from roseinfer.devices.transfer import to_device
from roseinfer.logits_processors.matcher import Matcher
from roseinfer.logits_processors.processor import LogitsProcessor

#: Below it a repetition penalty would lift logits to infinity; they are out of reach long before.
_MIN_DIVISOR = 2.0**-100


def process_logits(logits: Tensor, rows: Sequence[tuple[LogitsProcessor, int]]) -> None:
    """Adjust float32 `logits` [S, V] in place; each row has its processor and position."""
    _penalise(logits, [processor for processor, _ in rows])
    _add_biases(logits, [processor for processor, _ in rows])
    _mask_banned(logits, rows)
    _constrain(logits, rows)
    _force(logits, [processor.forced for processor, _ in rows])


def _penalise(logits: Tensor, rows: Sequence[LogitsProcessor]) -> None:
    counted = [(row, a.params, a.counts) for row, a in enumerate(rows) if a.counts is not None]
    entries = _Entries.of(logits, [(row, counts.ids) for row, _, counts in counted])
    if entries is None:
        return
    flat = array("q")
    for _, _, counts in counted:
        flat.extend(counts.counts)
    times = entries.ints(flat).to(logits.dtype)
    penalties = [
        (max(p.repetition_penalty, _MIN_DIVISOR), p.frequency_penalty, p.presence_penalty)
        for _, p, _ in counted
    ]
    repetition, frequency, presence = entries.spread(penalties).unbind(1)
    values = entries.values()
    values = torch.where(values < 0, values * repetition, values / repetition)
    values = values - frequency * times
    values = values - presence * (times > 0)
    entries.put(values)


def _add_biases(logits: Tensor, rows: Sequence[LogitsProcessor]) -> None:
    entries = _Entries.of(logits, [(row, a.bias_ids) for row, a in enumerate(rows)])
    if entries is not None:
        flat = array("d")
        for logits_processor in rows:
            flat.extend(logits_processor.biases)
        biases = to_device(torch.frombuffer(flat, dtype=torch.float64), logits.device)
        entries.put(entries.values() + biases.to(logits.dtype))


def _mask_banned(logits: Tensor, rows: Sequence[tuple[LogitsProcessor, int]]) -> None:
    masked = [
        (row, a.banned(position))
        for row, (a, position) in enumerate(rows)
        if a.grammar is None  # a matcher bans them itself, so that it can leave something allowed
    ]
    entries = _Entries.of(logits, [(row, ids) for row, ids in masked if len(ids) < logits.shape[1]])
    if entries is not None:
        entries.put(torch.full_like(entries.values(), -torch.inf))


def _constrain(logits: Tensor, rows: Sequence[tuple[LogitsProcessor, int]]) -> None:
    matched = [
        (row, grammar, a.banned(position))
        for row, (a, position) in enumerate(rows)
        if (grammar := a.grammar) is not None
    ]
    if matched:
        pairs = [(matcher, banned) for _, matcher, banned in matched]
        allowed = Matcher.allowed(pairs, logits.shape[1], logits.device)
        index = to_device(torch.tensor([row for row, _, _ in matched]), logits.device)
        logits[index] = logits[index].masked_fill(~allowed, -torch.inf)


def _force(logits: Tensor, forced: Sequence[int | None]) -> None:
    """Leave one token of each row whose next one is settled, with its logit, and 0 in the place of
    one that is banned."""
    settled = [(row, token_id) for row, token_id in enumerate(forced) if token_id is not None]
    if not settled:
        return
    rows, ids = to_device(torch.tensor(settled), logits.device).unbind(1)
    values = logits[rows, ids]
    logits[rows] = -torch.inf
    logits[rows, ids] = values.masked_fill(values == -torch.inf, 0.0)


class _Entries(NamedTuple):
    """Some entries of `logits` [S, V], each once, listed row by row."""

    logits: Tensor
    rows: Tensor
    columns: Tensor
    lengths: Tensor  # entries of each listed row

    @classmethod
    def of(cls, logits: Tensor, columns: Sequence[tuple[int, array[int]]]) -> _Entries | None:
        """The entries at each (row, columns); None if there are none."""
        flat = array("q")
        for _, ids in columns:
            flat.extend(ids)
        if not flat:
            return None
        pairs = torch.tensor([[row, len(ids)] for row, ids in columns])
        rows, lengths = to_device(pairs, logits.device).unbind(1)
        index = to_device(torch.frombuffer(flat, dtype=torch.int64), logits.device)
        # Given the output size, torch need not read the lengths back from the device.
        repeated = rows.repeat_interleave(lengths, output_size=len(flat))
        return cls(logits, repeated, index, lengths)

    def values(self) -> Tensor:
        return self.logits[self.rows, self.columns]

    def put(self, values: Tensor) -> None:
        self.logits[self.rows, self.columns] = values

    def ints(self, flat: array[int]) -> Tensor:
        return to_device(torch.frombuffer(flat, dtype=torch.int64), self.logits.device)

    def spread(self, per_row: Sequence[Sequence[float]]) -> Tensor:
        """[N, K]: for each of the N entries, the K numbers of its row."""
        table = to_device(torch.tensor(per_row, dtype=self.logits.dtype), self.logits.device)
        return table.repeat_interleave(self.lengths, dim=0, output_size=len(self.columns))
