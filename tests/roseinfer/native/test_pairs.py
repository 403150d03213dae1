"""Pairs of bfloat16, on AMX tiles and without: near to float32, and each row for itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from roseinfer import InferenceEngine
from roseinfer.model.quantization import FORMATS
from tests.roseinfer.models import (
    build,
    engine_run_by,
    first_logits,
    logits_behind_each_token,
    needs_decoder,
    prompts,
)
from tests.roseinfer.native.builds import PAIRS, using

pytestmark = needs_decoder

# Heads of a multiple of 32 dimensions attend in pairs too, others only multiply weights so.
MODELS = {
    "narrow heads": ("llama", {}, 16),
    "wide heads": ("llama", {"head_dim": 64}, 16),
    "an odd number of panels": ("qwen3", {"head_dim": 96}, 16),
    "large blocks": ("llama", {"head_dim": 32}, 48),
    "small blocks": ("llama", {"head_dim": 32}, 8),
    "a window": ("mistral", {"head_dim": 32, "sliding_window": 21}, 16),
    "a head for each key": ("llama", {"head_dim": 32, "num_key_value_heads": 4}, 16),
    "a soft cap and a window": ("gemma2", {"head_dim": 32, "sliding_window": 40}, 16),
    "more heads for a key than a tile has rows": (
        "llama",
        {"hidden_size": 160, "head_dim": 32, "num_attention_heads": 40, "num_key_value_heads": 1},
        16,
    ),
}

# For more keys than the 256 whose scores become weights together.
LONG = {
    "a long context": ("llama", {"head_dim": 64, "max_position_embeddings": 512}, 16),
    "a long window": (
        "mistral",
        {"head_dim": 32, "sliding_window": 270, "max_position_embeddings": 512},
        16,
    ),
}


@pytest.fixture(params=PAIRS)
def in_pairs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """The build in use multiplies pairs."""
    with using(request.param, tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture(params=MODELS)
def engine(request: pytest.FixtureRequest, in_pairs: None) -> InferenceEngine:
    return engine_of(request.param)


def engine_of(
    name: str, dtype: torch.dtype = torch.bfloat16, run_by: str = "compiled"
) -> InferenceEngine:
    """Weights are bfloat16's, whatever the type."""
    architecture, changes, block_size = (MODELS | LONG)[name]
    model: Any = build(architecture, **changes).to(torch.bfloat16).to(dtype)
    return engine_run_by(run_by, model, block_size=block_size, kv_cache_tokens=960)


def test_products_on_tiles_are_those_without(tmp_path: Path) -> None:
    with using("avx512_bf16", tmp_path):
        expected = first_logits(engine_of("narrow heads"), max_step_tokens=8)
    with using("amx", tmp_path):
        found = first_logits(engine_of("narrow heads"), max_step_tokens=8)
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("name", MODELS)
def test_pairs_are_as_near_to_float32_as_transformers(name: str, in_pairs: None) -> None:
    exact = first_logits(engine_of(name, torch.float32), max_step_tokens=8)
    plain = first_logits(engine_of(name, run_by="transformers"), max_step_tokens=8)
    found = first_logits(engine_of(name), max_step_tokens=8)
    # Nearer by half on average. Of a single model chance decides more than that.
    assert (found - exact).norm() < 1.5 * (plain - exact).norm()


@pytest.mark.parametrize("chunk", [1, 7, 33])
def test_a_token_has_the_same_bits_in_any_chunk(engine: InferenceEngine, chunk: int) -> None:
    (prompt,) = prompts(90)
    assert torch.equal(
        logits_behind_each_token(engine, prompt, chunk),
        logits_behind_each_token(engine, prompt, 90),
    )


@pytest.mark.parametrize("name", LONG)
def test_many_keys_are_attended_to_block_by_block(name: str, in_pairs: None) -> None:
    # given
    (prompt,) = prompts(300)
    exact = logits_behind_each_token(engine_of(name, torch.float32), prompt, 300)
    plain = logits_behind_each_token(engine_of(name, run_by="transformers"), prompt, 300)[
        : len(exact)
    ]
    # when
    engine = engine_of(name)
    found = logits_behind_each_token(engine, prompt, 300)
    # then
    assert (found - exact).norm() < 1.5 * (plain - exact).norm()
    assert torch.equal(logits_behind_each_token(engine, prompt, 37), found)


def test_what_lies_behind_a_sequence_changes_no_bit(engine: InferenceEngine) -> None:
    # given
    (prompt,) = prompts(71)
    expected = logits_behind_each_token(engine, prompt, 71)
    # when
    for tensor in (*engine.cache.keys, *engine.cache.values):
        tensor.fill_(torch.nan)
    # then
    assert torch.equal(logits_behind_each_token(engine, prompt, 71), expected)
    assert torch.equal(logits_behind_each_token(engine, prompt, 5), expected)


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt2"])
def test_whole_numbers_have_the_same_bits_on_tiles_and_without(
    architecture: str, weights: str, tmp_path: Path
) -> None:
    (prompt,) = prompts(90)
    with using("amx", tmp_path):
        model: Any = build(architecture).to(torch.bfloat16)
        engine = InferenceEngine.from_model(model, weights=weights, kv_cache_tokens=960)
        # Of so few rows none goes through tiles.
        expected = logits_behind_each_token(engine, prompt, 3)
        for chunk in (9, 33, 90):
            assert torch.equal(logits_behind_each_token(engine, prompt, chunk), expected), chunk
