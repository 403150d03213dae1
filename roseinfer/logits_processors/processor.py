"""Changes to a request's logits before they are filtered and sampled.

    repetition penalty -> frequency and presence penalty -> logit bias -> banned tokens -> grammar

Banned are ends that come too early and tokens that would repeat an n-gram. A grammar that allows no
other token overrides the ban.

Each is a function of the request's parameters and its tokens so far, so a request that resumes in
another process from its logged ids continues in the same way. All rows of a step are processed
together, and only the entries that change are touched: a penalty touches one logit for each
distinct token.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rose.sampling import SamplingParams
from roseinfer.devices.transfer import to_device
from roseinfer.logits_processors.grammars import Matcher


class TokenCounts:
    """Distinct tokens and how often each was generated: 0 for a token of the prompt alone."""

    def __init__(self, prompt_ids: Iterable[int]) -> None:
        self.ids = array("q")
        self.counts = array("q")
        self._index: dict[int, int] = {}
        for token_id in prompt_ids:
            self._index_of(token_id)

    def add(self, token_id: int) -> None:
        self.counts[self._index_of(token_id)] += 1

    def _index_of(self, token_id: int) -> int:
        index = self._index.setdefault(token_id, len(self.ids))
        if index == len(self.ids):
            self.ids.append(token_id)
            self.counts.append(0)
        return index


class NgramIndex:
    """Which tokens followed each sequence of `size` - 1 tokens, so that none need come again."""

    def __init__(self, size: int, token_ids: Iterable[int]) -> None:
        self._followers: dict[tuple[int, ...], set[int]] = {}
        self._latest: deque[int] = deque(maxlen=size - 1)
        for token_id in token_ids:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        if len(self._latest) == self._latest.maxlen:
            self._followers.setdefault(tuple(self._latest), set()).add(token_id)
        self._latest.append(token_id)

    def repeats(self) -> Iterable[int]:
        """The tokens that would repeat an n-gram."""
        return self._followers.get(tuple(self._latest), ())


class LogitsProcessor:
    """One request's penalties, bias, bans and grammar, with their state."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int] = (),
        *,
        ends: Iterable[int] = (),
        matcher: Matcher | None = None,
    ) -> None:
        """`ends` are the ids in the vocabulary that end the request."""
        self.params = params
        self.ends = sorted(ends)
        self.matcher = matcher
        self.bias_ids = array("q", [token_id for token_id, _ in params.logit_bias])
        self.biases = array("d", [bias for _, bias in params.logit_bias])
        self.counts: TokenCounts | None = None
        if params.penalises:
            # Presence and frequency are about the output: only repetition looks at the prompt.
            self.counts = TokenCounts(prompt_ids if params.repetition_penalty != 1 else ())
        self._ngrams: NgramIndex | None = None
        if params.no_repeat_ngram_size:
            self._ngrams = NgramIndex(params.no_repeat_ngram_size, prompt_ids)

    def add(self, token_id: int) -> None:
        """Count a generated token."""
        if self.counts is not None:
            self.counts.add(token_id)
        if self._ngrams is not None:
            self._ngrams.add(token_id)

    def banned(self, position: int) -> array[int]:
        """The ids that the token at `position` must not be, each once."""
        ids = set(self.ends) if position < self.params.min_new_tokens else set()
        if self._ngrams is not None:
            ids.update(self._ngrams.repeats())
        return array("q", ids)


def process_logits(logits: Tensor, rows: Sequence[tuple[LogitsProcessor, int]]) -> None:
    """Adjust float32 `logits` [S, V] in place; each row has its processor and position."""
    _penalise(logits, [processor for processor, _ in rows])
    _add_biases(logits, [processor for processor, _ in rows])
    _mask_banned(logits, rows)
    _constrain(logits, rows)


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
        (p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for _, p, _ in counted
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
        if a.matcher is None  # a matcher bans them itself, so that it can leave something allowed
    ]
    entries = _Entries.of(logits, masked)
    if entries is not None:
        entries.put(torch.full_like(entries.values(), -torch.inf))


def _constrain(logits: Tensor, rows: Sequence[tuple[LogitsProcessor, int]]) -> None:
    matched = [
        (row, a.matcher, a.banned(position))
        for row, (a, position) in enumerate(rows)
        if a.matcher is not None
    ]
    if matched:
        pairs = [(matcher, banned) for _, matcher, banned in matched]
        allowed = Matcher.allowed(pairs, logits.shape[1], logits.device)
        index = to_device(torch.tensor([row for row, _, _ in matched]), logits.device)
        logits[index] = logits[index].masked_fill(~allowed, -torch.inf)


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
