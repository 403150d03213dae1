"""What stands between the products, beside the same in float64."""

import pytest

pytest.importorskip("triton")

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from roseinfer.gpu.attention import Pages
from roseinfer.gpu.layers import Heads, apply_activation, apply_rope_and_store, residual_norm
from roseinfer.model.families import Activation, NormPart
from tests.roseinfer.gpu.attention_cases import DEVICE
from tests.roseinfer.gpu.test_skinny_gemm import close, random

EPSILON = 1e-5
BF16, FP16 = torch.bfloat16, torch.float16


def rms(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x / (x.square().mean(-1, True) + EPSILON).sqrt() * weight.double()


@pytest.mark.parametrize("width", [64, 100, 3000])
def test_a_norm_of_a_sum_is_what_torch_computes(width: int) -> None:
    hidden, delta = random(3, width), random(3, width, dtype=BF16)
    norm = NormPart(random(width), EPSILON)
    total = hidden.double() + delta.double()
    found = residual_norm(hidden, norm, torch.float32, delta=delta)
    close(hidden, total, torch.float32)
    close(found, rms(total, norm.weight), torch.float32)


def test_a_layer_norm_is_what_torch_computes() -> None:
    hidden, bias = random(3, 100) + 5, random(100, scale=2.0)
    norm = NormPart(random(100), EPSILON, bias)
    expected = F.layer_norm(
        hidden.double(), (100,), norm.weight.double(), bias.double(), eps=EPSILON
    )
    close(residual_norm(hidden, norm, torch.float32), expected, torch.float32)


def test_what_a_branch_found_goes_through_its_own_norm() -> None:
    hidden, delta, after = random(3, 100), random(3, 100, scale=9.0), NormPart(random(100), EPSILON)
    expected = hidden.double() + rms(delta, after.weight)
    assert residual_norm(hidden, None, BF16, delta=delta, after=after) is hidden
    close(hidden, expected, torch.float32)


def test_a_norm_rounds_to_the_type_of_the_products() -> None:
    hidden, norm = random(2, 64), NormPart(random(64), EPSILON)
    found = residual_norm(hidden, norm, FP16)
    assert torch.equal(found, residual_norm(hidden, norm, torch.float32).to(FP16))


@pytest.mark.parametrize("tokens", [1, 5, 40])  # programs of their own, and shared ones
@pytest.mark.parametrize(
    ("key_dim", "value_dim", "rotary", "normed"),
    [(64, 64, 64, False), (48, 48, 32, True), (80, 24, 80, True), (16, 16, 0, False)],
)
def test_queries_are_rotated_and_keys_and_values_stored(
    tokens: int, key_dim: int, value_dim: int, rotary: int, normed: bool
) -> None:
    # given
    queries, kv_heads = 6, 2
    qkv = random(tokens, queries * key_dim + kv_heads * (key_dim + value_dim))
    pages = Pages(
        torch.zeros(64, kv_heads, key_dim, device=DEVICE),
        torch.zeros(64, kv_heads, value_dim, device=DEVICE),
        16,
    )
    slots = torch.randperm(64)[:tokens].to(DEVICE)
    positions = torch.randint(0, 90, (tokens,)).to(DEVICE)
    angles = torch.arange(90.0)[:, None] / 50 ** torch.linspace(0, 1, max(rotary // 2, 1))
    norms = random(2, key_dim) if normed else None
    cosines, sines = (angles.cos().to(DEVICE), angles.sin().to(DEVICE)) if rotary else (None, None)
    # when
    query = apply_rope_and_store(
        qkv, Heads(queries, norms, EPSILON, cosines, sines), pages, slots, positions
    )
    # then
    split = [queries * key_dim, kv_heads * key_dim, kv_heads * value_dim]
    q, k, v = (
        part.unflatten(1, (h, -1))
        for part, h in zip(
            torch.split(qkv, split, dim=1), (queries, kv_heads, kv_heads), strict=True
        )
    )
    if norms is not None:
        q, k = rms(q, norms[0]), rms(k, norms[1])
    if rotary:
        q, k = (turn(x.double(), angles.to(DEVICE)[positions], rotary) for x in (q, k))
    close(query, q.double(), torch.float32)
    for cache, given in ((pages.keys, k), (pages.values, v)):
        close(cache[slots], given.double(), torch.float32)
        untouched = torch.ones(64, dtype=torch.bool)
        untouched[slots.cpu()] = False
        assert not bool(cache[untouched.to(DEVICE)].any())


def turn(x: Tensor, angles: Tensor, rotary: int) -> Tensor:
    """As complex numbers: (i, i + rotary / 2) times e to the angle."""
    half = rotary // 2
    turned = torch.complex(x[..., :half], x[..., half:rotary])
    turned = turned * torch.polar(torch.ones_like(angles), angles).to(turned.dtype)[:, None]
    return torch.cat([turned.real, turned.imag, x[..., rotary:]], dim=-1)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", list(Activation))
def test_activations_are_what_torch_computes(gated: bool, activation: Activation) -> None:
    x = random(3, 2 * 1100 if gated else 1100, scale=20.0)
    gates, others = x.double().chunk(2, dim=1) if gated else (x.double(), 1.0)
    function = F.silu if activation == Activation.SILU else F.gelu
    options = {} if activation == Activation.SILU else {"approximate": "tanh"}
    close(
        apply_activation(x, gated, activation), function(gates, **options) * others, torch.float32
    )
