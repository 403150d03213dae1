"""Whole models over the Triton kernels say what transformers says."""

from typing import Any

import pytest

pytest.importorskip("triton")

import torch

from rose.errors import ConfigurationError
from roseinfer import InferenceEngine
from roseinfer.gpu import kernels, triton_attention
from roseinfer.gpu.batch import pack
from roseinfer.gpu.options import GpuOptions
from roseinfer.sessions.session import Chunk
from tests.roseinfer.models import (
    answers,
    build,
    engine_run_by,
    prompts,
    reference,
    tiny_llama,
)

COUNT = 4
PROMPTS = prompts(3, 20, 9)


# Windows and soft caps; sinks and windows; keys wider than values.
@pytest.mark.parametrize("architecture", ["gemma2", "gpt_oss", "deepseek_v3"])
def test_greedy_tokens_are_those_of_transformers(architecture: str) -> None:
    """In chunks, in a batch that others join late, over blocks of an odd size."""
    model: Any = build(architecture, num_hidden_layers=2)
    expected = [reference(model, prompt, COUNT) for prompt in PROMPTS]
    engine = engine_run_by("triton", model, kv_cache_tokens=100, block_size=5)
    assert answers(engine, PROMPTS, COUNT) == expected
    engine.cache.pool.check_integrity()


@pytest.fixture
def engine() -> InferenceEngine:
    return InferenceEngine.from_model(tiny_llama(), kv_cache_tokens=256)


def test_a_step_is_one_copy_whose_parts_begin_at_16_bytes(engine: InferenceEngine) -> None:
    long, short = (engine.new_session(p) for p in prompts(40, 2))
    for session in (long, short):
        session.blocks = engine.cache.pool.allocate(session.blocks_wanted(40, 16))
    long.computed, short.computed = 30, 1

    batch = pack([Chunk(long, 7), Chunk(short, 1)], 16, torch.device("cpu"))

    sequences = batch.sequences
    parts = (batch.input_ids, batch.position_ids, batch.slots, batch.logit_rows, sequences.tables)
    parts += (sequences.table_starts, sequences.query_starts, sequences.lengths)
    (first_byte,) = {part.untyped_storage().data_ptr() for part in parts}
    assert all((part.data_ptr() - first_byte) % 16 == 0 for part in parts)
    assert batch.logit_rows.tolist() == [0], "the long chunk is not the end of its prompt"


def test_attention_outside_of_a_step_is_a_mistake(engine: InferenceEngine) -> None:
    layer: Any = triton_attention.TritonAttention(engine.cache).layers[0]
    with pytest.raises(RuntimeError, match="outside of an engine step"):
        layer.attend(None)


def test_triton_on_a_cpu_needs_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    with pytest.raises(ConfigurationError, match="cannot run on cpu: choose 'sdpa'"):
        InferenceEngine.from_model(
            tiny_llama(), gpu=GpuOptions(attention="triton"), kv_cache_tokens=64
        )


def test_an_unknown_attention_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'flash' is not one of sdpa, triton"):
        GpuOptions(attention="flash")
