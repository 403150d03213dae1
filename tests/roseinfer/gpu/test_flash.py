"""Prefill left to FlashInfer: what it is asked, and when it is not asked at all."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

import torch

from rose.errors import ConfigurationError
from roseinfer import InferenceEngine
from roseinfer.gpu import attention, backends
from roseinfer.gpu.attention import Pages, Rule
from roseinfer.gpu.options import GpuOptions
from tests.roseinfer.gpu import flashinfer_double
from tests.roseinfer.gpu.attention_cases import DEVICE, TOLERANCE, Case, make, reference
from tests.roseinfer.models import (
    answers,
    build,
    engine_run_by,
    prompts,
    tiny_llama,
)

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="FlashInfer's stand-in is for CPU")

HALF = torch.float16


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in, and our module that imports it."""
    module = flashinfer_double.module()
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(backends, "has_flashinfer", lambda: True)
    monkeypatch.delitem(sys.modules, "roseinfer.gpu.flash", raising=False)
    return module.BatchPrefillWithPagedKVCacheWrapper


def flash_prefill(block_size: int) -> Any:
    return importlib.import_module("roseinfer.gpu.flash").FlashPrefill(block_size, DEVICE)


@pytest.mark.parametrize(
    "case",
    [
        Case(prefills=((0, 9), (21, 40)), dtype=HALF),
        Case(decodes=(1, 17), prefills=((0, 9), (21, 40)), dtype=HALF, page=5, group=3),
        Case(prefills=((5, 20),), dtype=HALF, window=8, softcap=5.0),
        Case(prefills=((30, 3), (0, 2)), dtype=HALF, window=1),
    ],
    ids=str,
)
def test_prefill_is_flashinfers(flashinfer: Any, case: Case) -> None:
    # given
    given, flash = make(case), flash_prefill(case.page)
    prefills = zip(case.prefills, given.tables[len(case.decodes) :], strict=True)
    flash.begin(
        [
            SimpleNamespace(count=count, end=past + count, session=SimpleNamespace(blocks=table))
            for (past, count), table in prefills
        ]
    )
    # when
    sequences = replace(given.sequences, prefill=flash)
    found = attention.attend(given.pages, given.query.contiguous(), sequences, given.rule)
    # then
    assert flashinfer.plans == 1
    expected = reference(case, given)
    limit = TOLERANCE[case.dtype] * max(1.0, float(expected.abs().max()))
    assert float((found.double() - expected).abs().max()) <= limit


@pytest.mark.parametrize(
    ("key_dim", "value_dim", "dtype", "sinks", "takes"),
    [
        (64, 64, HALF, False, True),
        (128, 128, torch.bfloat16, False, True),
        (64, 64, torch.float32, False, False),
        (80, 80, HALF, False, False),
        (128, 64, HALF, False, False),
        (64, 64, HALF, True, False),
    ],
)
def test_what_it_lacks_stays_with_our_kernel(
    flashinfer: Any, key_dim: int, value_dim: int, dtype: torch.dtype, sinks: bool, takes: bool
) -> None:
    pages = Pages(
        torch.zeros(16, 1, key_dim, dtype=dtype), torch.zeros(16, 1, value_dim, dtype=dtype), 16
    )
    rule = Rule(1.0, sinks=torch.zeros(1) if sinks else None)
    assert flash_prefill(16).takes(pages, rule) == takes


# One that our fused decoder runs, and one that transformers' code does.
@pytest.mark.parametrize("architecture", ["gemma2", "cohere2"])
def test_whole_models(flashinfer: Any, architecture: str) -> None:
    """Layers with and without a window: a plan for each kind, once a step."""
    sizes = {"head_dim": 64} if architecture == "gemma2" else {"hidden_size": 256}
    kinds = ["sliding_attention", "full_attention"]
    model = build(architecture, num_hidden_layers=2, layer_types=kinds, **sizes).half()
    asked = prompts(3, 20, 9)
    expected = answers(engine_run_by("triton", model, kv_cache_tokens=100), asked, 3)
    gpu = GpuOptions(attention="flashinfer")
    engine = InferenceEngine.from_model(model, kv_cache_tokens=100, gpu=gpu)
    steps = 0

    def counted(self: Any, *arguments: Any, **options: Any) -> None:
        nonlocal steps
        steps += 1
        begin(self, *arguments, **options)

    kind = importlib.import_module("roseinfer.gpu.flash").FlashPrefill
    begin, kind.begin = kind.begin, counted
    flashinfer.plans = 0
    assert answers(engine, asked, 3) == expected
    assert flashinfer.plans == 2 * steps > 0


def test_without_the_package_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "has_flashinfer", lambda: False)
    gpu = GpuOptions(attention="flashinfer")
    with pytest.raises(ConfigurationError, match="pip install flashinfer-python"):
        InferenceEngine.from_model(tiny_llama(), kv_cache_tokens=64, gpu=gpu)
