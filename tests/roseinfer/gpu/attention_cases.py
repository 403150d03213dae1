"""Attention over paged keys and values: cases drawn from a seed, and the answer in float64."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from roseinfer.gpu import attention, kernels
from roseinfer.gpu.attention import AttentionParams, Pages, Sequences

# With TRITON_INTERPRET=0 in the environment these tests run on a GPU.
DEVICE = torch.device("cpu" if kernels.INTERPRETED else "cuda")

# Rounding of the inputs' own type; float32 is held to what float32 sums allow.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Case:
    """`decodes` are lengths; `prefills` pairs of (tokens before, queries)."""

    decodes: tuple[int, ...] = ()
    prefills: tuple[tuple[int, int], ...] = ()
    kv_heads: int = 2
    group: int = 2
    key_dim: int = 64
    value_dim: int | None = None
    page: int = 16
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    dtype: torch.dtype = torch.float32
    splits: int | None = None
    seed: int = 0

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(tokens before, queries) of every sequence."""
        return [(max(n - 1, 0), 1) for n in self.decodes] + list(self.prefills)


@dataclass(frozen=True)
class Input:
    pages: Pages
    query: Tensor
    sequences: Sequences
    params: AttentionParams
    tables: list[list[int]]


def check(case: Case) -> None:
    """Fails where the largest error is above what the type's rounding explains."""
    given = make(case)
    found = attention.attend(
        given.pages, given.query, given.sequences, given.params, splits=case.splits
    ).double()
    expected = reference(case, given)
    assert found.shape == expected.shape
    error = float((found - expected).abs().max())
    limit = TOLERANCE[case.dtype] * max(1.0, float(expected.abs().max()))
    assert error <= limit, f"{case}: an error of {error:.2g}, {limit:.2g} allowed"


def make(case: Case) -> Input:
    """Queries, a cache whose pages are dealt out at random, and what lies between them is nan."""
    source = torch.Generator().manual_seed(case.seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source).to(case.dtype)

    lengths = [past + count for past, count in case.spans]
    needed = [-(-length // case.page) for length in lengths]
    order = (1 + torch.randperm(sum(needed), generator=source)).tolist()
    tables = [[order.pop() for _ in range(count)] for count in needed]
    value_dim = case.value_dim or case.key_dim
    slots = (1 + sum(needed)) * case.page
    keys = torch.full((slots, case.kv_heads, case.key_dim), torch.nan).to(case.dtype)
    values = torch.full((slots, case.kv_heads, value_dim), torch.nan).to(case.dtype)
    for table, length in zip(tables, lengths, strict=True):
        used = [table[p // case.page] * case.page + p % case.page for p in range(length)]
        keys[used] = noise(length, case.kv_heads, case.key_dim)
        values[used] = noise(length, case.kv_heads, value_dim)
    heads = case.kv_heads * case.group
    counts = [count for _, count in case.spans]
    params = AttentionParams(
        case.key_dim**-0.5 * 2,
        case.window,
        case.softcap,
        noise(heads).float().to(DEVICE) if case.sinks else None,
    )
    sequences = Sequences(
        _ints([block for table in tables for block in table]),
        _ints(accumulate([0, *needed[:-1]])),
        _ints(accumulate([0, *counts])),
        _ints(lengths),
        len(case.decodes),
        len(case.prefills),
        max((count for _, count in case.prefills), default=0),
    )
    query = noise(heads, sum(counts), case.key_dim).transpose(0, 1)  # as transformers hands it over
    pages = Pages(keys.to(DEVICE), values.to(DEVICE), case.page)
    return Input(pages, query.to(DEVICE), sequences, params, tables)


def reference(case: Case, given: Input) -> Tensor:
    """Softmax attention written out, in float64, a sequence at a time."""
    parts = []
    for (past, count), table, start in zip(
        case.spans, given.tables, given.sequences.query_starts.tolist(), strict=False
    ):
        length = past + count
        slots = [table[p // case.page] * case.page + p % case.page for p in range(length)]
        keys = given.pages.keys[slots].double().repeat_interleave(case.group, dim=1)
        values = given.pages.values[slots].double().repeat_interleave(case.group, dim=1)
        query = given.query[start : start + count].double()
        scores = torch.einsum("qhd,khd->hqk", query, keys) * given.params.scaling
        if case.softcap is not None:
            scores = torch.tanh(scores / case.softcap) * case.softcap
        at = torch.arange(length, device=DEVICE)
        own = at[past:].unsqueeze(1)
        hidden = at > own
        if case.window is not None:
            hidden |= at <= own - case.window
        scores = scores.masked_fill(hidden, -math.inf)
        if given.params.sinks is not None:
            sinks = given.params.sinks.double().view(-1, 1, 1).expand(-1, count, 1)
            weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
        else:
            weights = scores.softmax(dim=-1)
        parts.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(parts)


def _ints(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64, device=DEVICE)
