"""Every head size with every group and page size, at lengths from 1 to 5,000: takes half an hour.

python -m pytest -m sweep tests/roseinfer/gpu
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

pytest.importorskip("triton")

import torch

from roseinfer.gpu import attention
from roseinfer.gpu.attention import Sequences, Tile
from tests.roseinfer.gpu.attention_cases import DEVICE, TOLERANCE, Case, check, make, reference

HEAD_SIZES = (64, 80, 96, 128, 256)
GROUPS = (1, 2, 3, 4, 7, 8, 16)
PAGES = (1, 5, 16, 64, 128)
LONGEST = 5000
pytestmark = [pytest.mark.sweep, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    ("head", "group", "page"), list(itertools.product(HEAD_SIZES, GROUPS, PAGES))
)
def test_ragged_mixtures(head: int, group: int, page: int) -> None:
    """The rest is drawn: types, windows, soft caps, sinks, lengths, chunks, splits, tiles."""
    draw = random.Random(f"{head}/{group}/{page}")

    def length() -> int:
        return int(LONGEST ** draw.random())

    check(
        Case(
            decodes=(1, length(), length(), draw.choice((length(), LONGEST))),
            prefills=tuple((draw.choice((0, length())), min(length(), 300)) for _ in range(2)),
            kv_heads=draw.choice((1, 2)),
            group=group,
            key_dim=head,
            page=page,
            window=draw.choice((None, 1, 128, 4096)),
            softcap=draw.choice((None, 30.0)),
            sinks=draw.random() < 0.5,
            dtype=draw.choice((torch.float32, torch.bfloat16, torch.float16)),
            splits=draw.choice((None, 1, 4, 32)),
            tile=draw.choice((None, None, Tile(256, 256))),
            seed=draw.randrange(1000),
        )
    )


@pytest.mark.parametrize("window", [None, 100])
def test_every_length_up_to_the_longest(window: int | None) -> None:
    """A decode step at each length over one sequence's pages is that sequence's causal prefill."""
    case = Case(prefills=((0, LONGEST),), kv_heads=1, group=1, window=window, tile=Tile(1024, 1024))
    given = make(case)
    expected = reference(case, given)
    count = torch.arange(LONGEST + 1, device=DEVICE)
    decodes = Sequences(
        given.sequences.tables, torch.zeros_like(count), count, count[1:], LONGEST, 0, 0
    )
    for sequences in (given.sequences, decodes):
        found = attention.attend(
            given.pages, given.query, sequences, given.rule, splits=2, tile=case.tile
        )
        error = float((found.double() - expected).abs().max())
        assert error <= TOLERANCE[case.dtype], replace(case, splits=2)
