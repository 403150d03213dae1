"""Packed products give what float64 gives, whatever the build, the type and the number of rows."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from roseinfer.model.quantization import quantize, quantize_wide
from roseinfer.model.quantized_weight import GROUP, WIDE_GROUP, Form, QuantizedWeight
from roseinfer.native.weights import (
    QUANTIZED_TYPES,
    PackedMatrix,
    QuantizedMatrix,
    concatenate,
    concatenate_quantized,
)
from tests.roseinfer.models import needs_decoder, random, random_weight
from tests.roseinfer.native.builds import PAIRS, using

pytestmark = needs_decoder

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=[*PAIRS, "avx512_vnni", "avx512", "avx_vnni", "avx2", "portable"])
def build(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Each build that this processor can run, by emulation if need be."""
    with using(request.param, tmp_path_factory.getbasetemp()):
        yield request.param


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (16, 64), (50, 258), (129, 608)])
def test_a_product_is_right_for_any_number_of_rows(
    build: str, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    weight, bias = random(*shape, dtype=dtype), random(shape[0], seed=1)
    packed = PackedMatrix(weight, bias)
    for rows in (1, 2, 3, 5, 6, 7, 12, 13, 31, 100, 200):
        x = random(rows, shape[1], seed=rows)
        read = x.to(dtype) if build in PAIRS else x
        expected = (read.double() @ weight.double().T + bias.double()).float()
        torch.testing.assert_close(packed.multiply(x), expected, atol=1e-4, rtol=1e-4)


def test_a_product_is_right_for_many_panels_and_parts_of_inputs(build: str) -> None:
    weight = random(3400, 1216, dtype=torch.bfloat16)
    x = random(200, 1216, seed=1)
    read = x.bfloat16() if build in PAIRS else x
    expected = read.float() @ weight.float().T
    torch.testing.assert_close(PackedMatrix(weight).multiply(x), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", [608, 610])
def test_a_row_has_the_same_bits_among_any_number_of_rows(
    build: str, dtype: torch.dtype, inputs: int
) -> None:
    packed = PackedMatrix(random(100, inputs, dtype=dtype))
    x = random(260, inputs, seed=1)
    whole = packed.multiply(x)
    for rows in (1, 2, 4, 7, 12, 40, 97):
        assert torch.equal(packed.multiply(x[:rows]), whole[:rows]), rows


FORMS = list(QUANTIZED_TYPES)


def shapes(form: Form) -> list[tuple[int, int]]:
    """The last one so large that a thread has several blocks of panels."""
    if form.wide:
        return [(1, 64), (50, 192), (129, 576), (800, 64)]
    if form.factors:
        return [(1, 256), (50, 768), (800, 256)]
    return [(1, 32), (50, 96), (129, 608), (800, 64)]


@pytest.mark.parametrize(
    ("form", "shape"), [(form, shape) for form in FORMS for shape in shapes(form)]
)
def test_a_quantized_product_is_right_for_any_number_of_rows(
    build: str, form: Form, shape: tuple[int, int]
) -> None:
    weight, bias = random_weight(form, shape), random(shape[0], seed=1)
    packed = QuantizedMatrix(weight, bias)
    x = random(200, shape[1], seed=3)  # of which none is halfway between two values
    x[3] = 0
    rounded = _in_8_bits(x, form)
    expected = (rounded @ weight.dequantize().double().T + bias.double()).float()
    whole = packed.multiply(x)
    torch.testing.assert_close(whole, expected, atol=1e-4, rtol=1e-4)
    for rows in (1, 2, 3, 5, 8, 9, 13, 31):  # and the same bits, however many there are
        assert torch.equal(packed.multiply(x[:rows]), whole[:rows]), rows


@pytest.mark.parametrize("form", FORMS)
def test_the_largest_products_of_a_group_are_summed_exactly(build: str, form: Form) -> None:
    weight = random_weight(form, (16, 256))
    weight = replace(weight, values=torch.full_like(weight.values, 2**form.bits - 1))
    # Rounded to 8 bits: all 127; of 16 inputs one 127, the others where a half of it is largest.
    x = torch.ones(6, 256)
    for row, value in ((1, 120), (2, 119), (3, 8), (4, 7), (5, -120)):
        x[row] = value / 127
        x[row, ::16] = 1
    for signed in (x, -x):
        expected = (_in_8_bits(signed, form) @ weight.dequantize().double().T).float()
        found = QuantizedMatrix(weight).multiply(signed)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_of_panels_too_long_for_a_near_cache_has_the_same_bits(
    build: str, form: Form
) -> None:
    inputs = 5824 if form.wide else 3072
    packed = QuantizedMatrix(random_weight(form, (50, inputs)))
    x = random(60, inputs, seed=3)
    whole = packed.multiply(x)
    for rows in (1, 9, 31):
        assert torch.equal(packed.multiply(x[:rows]), whole[:rows]), rows


def _in_8_bits(x: Tensor, form: Form) -> Tensor:
    """As quantized.h and wide.h round activations: each group by its largest."""
    size = WIDE_GROUP if form.wide else GROUP
    groups = x.unflatten(1, (-1, size))
    largest = groups.abs().amax(-1, keepdim=True)
    rounded = (groups * torch.where(largest > 0, 127 / largest, 0)).round()
    return (rounded.double() * (largest / 127).double()).flatten(1)


@pytest.mark.parametrize("make", [quantize, quantize_wide])
@pytest.mark.parametrize("rows", [3, 20])
def test_what_is_no_number_stays_none(
    build: str, make: Callable[[Tensor, int], QuantizedWeight], rows: int
) -> None:
    packed = QuantizedMatrix(make(random(20, 192), 8))
    x = random(rows, 192, seed=1)
    x[1, 40], x[2, 150] = float("nan"), float("inf")
    found = packed.multiply(x)
    assert found[1:3].isnan().all()
    found[1:3] = 0
    assert found.isfinite().all()


@pytest.mark.parametrize("form", FORMS)
def test_quantized_weights_come_back_as_they_were(form: Form) -> None:
    one, other = random_weight(form, (24, 512)), random_weight(form, (7, 512), seed=5)
    packed = concatenate_quantized([one, other], [None, random(7, seed=2)])
    expected = torch.cat([one.dequantize(), other.dequantize()]).bfloat16()
    assert torch.equal(packed.unpack(), expected)
    assert isinstance(packed, QuantizedMatrix)
    assert packed.bias is not None
    assert not packed.bias[:24].any()


def test_those_of_several_forms_come_back_too() -> None:
    weights = [random_weight(form, (7, 512)) for form in FORMS]
    packed = concatenate_quantized(weights, [None] * len(weights))
    expected = torch.cat([weight.dequantize() for weight in weights]).bfloat16()
    assert (packed.outputs, packed.inputs) == expected.shape
    assert torch.equal(packed.unpack(), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_come_back_as_they_were(dtype: torch.dtype) -> None:
    one, other = random(24, 10, dtype=dtype), random(7, 10, dtype=dtype, seed=1)
    packed = concatenate([one, other], [None, random(7, seed=2)])
    assert torch.equal(packed.unpack(), torch.cat([one, other]))
    assert packed.bias is not None
    assert not packed.bias[:24].any()
