"""The compiled recurrence: torch's numbers, and the same bits in any chunk."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from roseinfer import native
from roseinfer.model.state_layers import StateBatch, recur_in_torch
from roseinfer.native import compiler
from tests.roseinfer.models import needs_decoder, random
from tests.roseinfer.native import builds

pytestmark = needs_decoder

SHAPES = [(3, 10, 13), (2, 11, 70), (1, 128, 128)]
LENGTHS = [9, 4, 1]
PADDING = 2


@pytest.fixture(params=compiler.BUILDS, autouse=True)
def build(request: pytest.FixtureRequest) -> Iterator[None]:
    before = native.build_name()
    if not builds.choose(request.param):
        pytest.skip(f"this library or processor has no {request.param}")
    yield
    builds.choose(str(before))


def batch(lengths: list[int], slots: list[int], writes: list[tuple[int, int, int]]) -> StateBatch:
    counts = torch.tensor(lengths)
    starts = counts.cumsum(0) - counts
    sequence_of = torch.arange(len(lengths)).repeat_interleave(counts)
    token_of = torch.cat([torch.arange(length) for length in lengths])
    rows = starts[sequence_of] + token_of
    return StateBatch(
        starts, counts, torch.tensor(slots), torch.tensor(writes), sequence_of, token_of, rows
    )


def tensors(rows: int, heads: int, keys: int, values: int, *, delta: bool) -> list[Tensor | None]:
    query, key = (random(rows, heads, keys, seed=n) / keys**0.5 for n in (1, 2))
    value, decay, beta = random(rows, heads, values), *(random(rows, heads, seed=n) for n in (3, 4))
    return [query, key, value, decay.sigmoid(), beta.sigmoid() if delta else None]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("delta", [True, False])
def test_it_computes_what_torch_does(shape: tuple[int, int, int], delta: bool) -> None:
    # given sequences of mixed lengths, whose states are written on the way, and padding
    inputs = tensors(sum(LENGTHS) + PADDING, *shape, delta=delta)
    step = batch(LENGTHS, [1, 2, 3], [(0, 3, 4), (0, 8, 1), (1, 0, 5), (1, 3, 2), (2, 0, 3)])
    theirs, ours = random(7, *shape, seed=5), random(7, *shape, seed=5)
    # when
    expected = recur_in_torch(theirs, step, *inputs)  # type: ignore[arg-type]
    found = native.recur(ours, step, *inputs)  # type: ignore[arg-type]
    # then
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ours, theirs)
    assert not found[-PADDING:].any()
    assert torch.equal(ours[6], random(7, *shape, seed=5)[6]), "a slot of nobody was written"


@pytest.mark.parametrize("delta", [True, False])
def test_the_same_bits_in_any_chunk(delta: bool) -> None:
    # given
    shape, length = SHAPES[1], 12
    inputs = tensors(length, *shape, delta=delta)
    whole = torch.zeros(2, *shape)
    expected = native.recur(whole, batch([length], [1], [(0, length - 1, 1)]), *inputs)  # type: ignore[arg-type]
    for chunk in (1, 5):
        # when
        sums, parts = torch.zeros(2, *shape), []
        for start in range(0, length, chunk):
            part = [x[start : start + chunk] if x is not None else None for x in inputs]
            count = min(chunk, length - start)
            step = batch([count], [1], [(0, count - 1, 1)])
            parts.append(native.recur(sums, step, *part))  # type: ignore[arg-type]
        # then
        assert torch.equal(torch.cat(parts), expected)
        assert torch.equal(sums, whole)


def test_what_does_not_fit_is_refused() -> None:
    inputs = tensors(3, *SHAPES[0], delta=True)
    with pytest.raises(ValueError, match="do not fit"):
        native.recur(torch.zeros(2, *SHAPES[1]), batch([3], [1], [(0, 2, 1)]), *inputs)  # type: ignore[arg-type]
