"""The Triton kernels beside attention written out in float64."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

import torch

from roseinfer.gpu import attention
from roseinfer.gpu.attention import Pages
from roseinfer.gpu.device import multiprocessors
from tests.roseinfer.gpu.attention_cases import DEVICE, Case, check

MIXED = {"decodes": (1, 17, 130), "prefills": ((0, 9), (21, 40))}
BF16, FP16 = torch.bfloat16, torch.float16


@pytest.mark.parametrize(
    "case",
    [
        Case(**MIXED),
        Case(**MIXED, key_dim=80, group=3, page=5, window=8, softcap=5.0, sinks=True),
        Case(**MIXED, key_dim=96, group=1, page=1, window=1),
        Case(**MIXED, key_dim=128, group=7, page=32, kv_heads=1, sinks=True),
        Case(**MIXED, key_dim=256, group=4, page=64, softcap=30.0),
        Case(**MIXED, key_dim=24, value_dim=16, page=7, window=33),
        Case(**MIXED, key_dim=128, dtype=BF16, window=50),
        Case(**MIXED, key_dim=64, dtype=FP16, sinks=True, softcap=20.0),
        Case(**MIXED, splits=1, sinks=True),
        Case(**MIXED, splits=2, window=20, sinks=True),
        Case(decodes=(900, 3, 257), splits=8, page=16),
        Case(decodes=(0, 40, 0), splits=4, sinks=True),
        Case(decodes=(0, 40), splits=1),
        Case(prefills=((0, 1), (0, 150), (149, 2)), group=20, kv_heads=1),
        Case(prefills=((0, 70),), group=5),
        # Blocks of keys that all of a tile's queries see, and blocks that only some do.
        Case(prefills=((100, 70), (0, 150)), key_dim=128, dtype=BF16, kv_heads=1),
        Case(prefills=((70, 40),), softcap=5.0, sinks=True),
    ],
    ids=str,
)
def test_attention_is_what_torch_computes(case: Case) -> None:
    check(case)


def test_choosing_splits_fills_the_device_and_ends_somewhere() -> None:
    count = multiprocessors(DEVICE)
    assert attention.choose_splits(100 * count, DEVICE) == 1
    assert attention.choose_splits(count, DEVICE) == 2
    assert attention.choose_splits(1, torch.device("cpu")) == 8
    few = [attention.choose_splits(n, DEVICE) for n in range(1, 40)]
    assert all(splits & (splits - 1) == 0 for splits in few)
    assert few == sorted(few, reverse=True)


@pytest.mark.parametrize(("key_dim", "value_dim"), [(64, 64), (80, 24)])
def test_write_puts_every_row_into_its_slot_and_touches_no_other(
    key_dim: int, value_dim: int
) -> None:
    heads, tokens = 3, 21
    pages = Pages(
        torch.zeros(64, heads, key_dim, device=DEVICE),
        torch.zeros(64, heads, value_dim, device=DEVICE),
        16,
    )
    # As transformers has them after the rotation: heads first, and keys not in one piece.
    keys = torch.randn(heads, key_dim, tokens, device=DEVICE).permute(2, 0, 1)
    values = torch.randn(heads, tokens, value_dim, device=DEVICE).transpose(0, 1)
    slots = torch.randperm(64)[:tokens].to(DEVICE)

    attention.write(pages, keys, values, slots)

    for cache, given in ((pages.keys, keys), (pages.values, values)):
        expected = torch.zeros_like(cache)
        expected[slots] = given
        assert torch.equal(cache, expected)


def test_write_rounds_to_the_type_of_the_cache() -> None:
    pages = Pages(*(torch.zeros(8, 1, 16, device=DEVICE, dtype=FP16) for _ in range(2)), 4)
    rows = torch.randn(2, 1, 16, device=DEVICE)
    attention.write(pages, rows, rows, torch.tensor([5, 1], device=DEVICE))
    assert torch.equal(pages.keys[[5, 1]], rows.half())


def test_the_kernels_compile_for_a_gpu_that_is_not_here() -> None:
    _compile()


@pytest.mark.sweep
@pytest.mark.timeout(1800)
def test_every_kernel_compiles() -> None:
    assert _compile("all").count("attend_kernel") > 100


def _compile(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.roseinfer.gpu.compiling", *arguments]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
