"""What the engine does faster on CPU gives what the plain way gives."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from roseinfer import InferenceEngine, OnlineScheduler, fusing, kernels
from roseinfer.fusing import FusedRMSNorm, fuse
from roseinfer.packed_linear import PackedLinear, pack_linears
from tests.roseinfer.models import build, drain, greedy, prompts, reference, tokens

DTYPES = [torch.float32, torch.bfloat16]

needs_kernels = pytest.mark.skipif(
    not kernels.available(), reason="the installation could not compile the kernels"
)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_library", None)


@pytest.fixture
def no_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)


# Packed linear layers


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_computes_what_the_plain_one_does(dtype: torch.dtype, bias: bool) -> None:
    plain = nn.Linear(48, 80, bias=bias, dtype=dtype)
    packed = PackedLinear(plain.weight, plain.bias)
    assert torch.equal(packed.weight, plain.weight)
    for rows in (1, 8, 40):
        x = random(1, rows, 48, dtype=dtype)
        torch.testing.assert_close(packed(x), plain(x))


def test_a_float32_row_has_the_same_bits_among_any_number_of_rows() -> None:
    packed = PackedLinear(random(96, 64), None)
    x = random(1, 104, 64, seed=1)
    whole = packed(x)
    for rows in (1, 3, 8, 40):
        assert torch.equal(packed(x[:, :rows]), whole[:, :rows]), rows


def test_every_linear_layer_is_packed_and_the_model_says_the_same() -> None:
    for architecture in ("llama", "gpt2"):
        model = build(architecture)
        ids = torch.tensor([[5, 7, 11]])
        expected = model(input_ids=ids).logits
        assert pack_linears(model) > 6
        assert not any(type(module) in (nn.Linear, Conv1D) for module in model.modules())
        torch.testing.assert_close(model(input_ids=ids).logits, expected, atol=1e-4, rtol=1e-4)


def test_a_layer_used_in_two_places_stays_one() -> None:
    shared = nn.Linear(8, 8)
    model = nn.ModuleDict({"a": nn.ModuleDict({"x": shared}), "b": nn.ModuleDict({"x": shared})})
    assert pack_linears(model) == 1
    assert model["a"]["x"] is model["b"]["x"]  # type: ignore[index]


def test_a_tied_embedding_keeps_its_rows() -> None:
    model = build("llama", tie_word_embeddings=True)
    before = model.get_input_embeddings().weight.clone()
    InferenceEngine.from_model(model, kv_cache_tokens=256)
    assert torch.equal(model.get_input_embeddings().weight, before)


def test_a_subclass_or_a_hooked_layer_is_left_alone() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    hooked = nn.Linear(8, 8)
    hooked.register_forward_hook(lambda module, args, output: output + 1)
    assert pack_linears(nn.Sequential(Doubled(8, 8), hooked)) == 0


@pytest.mark.usefixtures("no_packing")
def test_without_onednn_layers_stay_plain() -> None:
    model = build("llama")
    assert fuse(model) == sum(type(m) is FusedRMSNorm for m in model.modules())
    assert pack_linears(model) == 0
    assert any(type(module) is nn.Linear for module in model.modules())


# Fused parts


FAMILIES = {"llama": 6 + 7, "mistral": 6 + 7, "qwen2": 6 + 7, "qwen3": 6 + 7 + 6, "gemma": 6}


@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_common_families_are_recognised_and_stay_the_same(architecture: str) -> None:
    """Two shared projections in each of three layers; gemma's norms differ and stay."""
    model = build(architecture)
    ids = torch.tensor([[5, 7, 11, 13]])
    expected = model(input_ids=ids).logits
    assert fuse(model) == FAMILIES[architecture]
    torch.testing.assert_close(model(input_ids=ids).logits, expected, atol=1e-4, rtol=1e-4)


def test_a_shared_projection_answers_for_each_input() -> None:
    plain = [nn.Linear(16, size) for size in (24, 8, 8)]
    a, b, c = fusing.SharedProjection(plain).slices
    x, y = random(1, 3, 16), random(1, 3, 16, seed=1)
    # when: asked out of turn, twice, and with another input in between
    asked = [(a, 0, x), (b, 1, y), (a, 0, x), (c, 2, x), (a, 0, y), (a, 0, y), (b, 1, y)]
    for piece, index, given in asked:
        torch.testing.assert_close(piece(given), plain[index](given))
    for piece, linear in zip((a, b, c), plain, strict=True):
        assert torch.equal(piece.weight, linear.weight)
        assert piece.bias is not None
        assert torch.equal(piece.bias, linear.bias)


def test_a_shared_projection_keeps_nothing_once_all_were_asked() -> None:
    shared = fusing.SharedProjection([nn.Linear(16, 8), nn.Linear(16, 8)])
    x = random(1, 3, 16)
    for piece in shared.slices:
        piece(x)
    assert shared._input is None


def test_projections_that_do_not_belong_together_are_left_alone() -> None:
    parent = nn.Module()
    parent.q_proj, parent.k_proj = nn.Linear(16, 8), nn.Linear(16, 8)
    parent.v_proj = nn.Linear(12, 8)
    assert fuse(parent) == 0


# Compiled kernels


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_kernel_equals_torch(dtype: torch.dtype) -> None:
    norm = build("llama").model.norm.to(dtype)
    norm.weight.data = random(64, dtype=dtype)
    x = random(1, 5, 64, dtype=dtype, seed=1)
    torch.testing.assert_close(kernels.rms_norm(x, norm.weight, norm.variance_epsilon), norm(x))
    narrow = random(5, 128, dtype=dtype)[:, :64]
    torch.testing.assert_close(
        kernels.rms_norm(narrow, norm.weight, norm.variance_epsilon), norm(narrow)
    )


def _attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query [Hq, D] over [n, Hkv, D], in float32."""
    share = query.shape[0] // keys.shape[1]
    keys, values = (t.float().repeat_interleave(share, dim=1) for t in (keys, values))
    scores = torch.einsum("hd,phd->hp", query.float(), keys) * 0.2
    return torch.einsum("hp,phd->hd", scores.softmax(dim=-1), values)


@needs_kernels
@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (24, 16)])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("batch", [1, 3, 9])
def test_the_attention_kernel_reads_the_right_keys(
    dims: tuple[int, int], window: int | None, batch: int
) -> None:
    # given: block tables in no order, contexts from one token to full tables
    size, width, kv_heads, share = 4, 5, 2, 3
    slots = (batch * width + 1) * size
    keys = random(slots, kv_heads, dims[0], dtype=torch.bfloat16)
    values = random(slots, kv_heads, dims[1], dtype=torch.bfloat16, seed=1)
    query = random(batch, kv_heads * share, dims[0], dtype=torch.bfloat16, seed=2)
    tables = (torch.randperm(batch * width) + 1).view(batch, width)
    positions = torch.arange(batch) * (width * size - 1) // max(batch - 1, 1)
    out = torch.empty(batch, kv_heads * share, dims[1], dtype=torch.bfloat16)
    # when
    kernels.attend(
        query, keys, values, tables, positions, out, block_size=size, scaling=0.2, window=window
    )
    # then
    for row in range(batch):
        seen = (tables[row].unsqueeze(1) * size + torch.arange(size)).flatten()
        seen = seen[: int(positions[row]) + 1][-(window or slots) :]
        expected = _attention(query[row], keys[seen], values[seen])
        torch.testing.assert_close(out[row].float(), expected, atol=0.02, rtol=0.02)


def _logits(architecture: str) -> Tensor:
    """Logits of prompts computed in bfloat16, in chunks of which some are a single token."""
    model: Any = build(architecture).to(torch.bfloat16)
    engine = InferenceEngine.from_model(model, kv_cache_tokens=1024)
    scheduler = OnlineScheduler(engine, max_batch_size=4, max_step_tokens=8)
    seen: list[Tensor] = []
    forward = engine.forward

    def record(chunks: Any) -> Any:
        logits = forward(chunks)
        seen.append(logits.values[: len(logits.sessions)].float())
        return logits

    engine.forward = record  # type: ignore[method-assign]
    for prompt in prompts(9, 30, 17):
        scheduler.add_request(prompt, params=greedy(1))
    drain(scheduler)
    return torch.cat(seen)


@needs_kernels
@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen3", "gpt2", "gemma2"])
def test_bfloat16_is_as_near_with_the_kernels_as_without(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = _logits(architecture)
    monkeypatch.setattr(kernels, "_library", None)
    plain = _logits(architecture)
    assert (fast - plain).norm() < 0.1 * plain.norm()


# All of it switched off


@pytest.mark.usefixtures("no_kernels", "no_packing")
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt2"])
def test_parity_holds_without_any_of_it(architecture: str) -> None:
    model = build(architecture)
    asked = prompts(3, 20, 41)
    expected = [reference(model, prompt, 8) for prompt in asked]
    engine = InferenceEngine.from_model(model, kv_cache_tokens=1024)
    scheduler = OnlineScheduler(engine, max_step_tokens=16)
    names = [scheduler.add_request(prompt, params=greedy(8)) for prompt in asked]
    outputs = drain(scheduler)
    assert [tokens(outputs[name]) for name in names] == expected


# OpenMP


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_openmp_threads_spin_briefly_unless_told_otherwise(
    given: dict[str, str], spins: str
) -> None:
    # The environment is read when torch loads, so it must be set before: hence a new process.
    code = "import roseinfer._openmp, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP_", "OMP_WAIT"))}
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, **given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == spins
