"""Gemma 4 in the compiled decoder: heads of two sizes, keys and values that layers share, inputs
of each layer's own, and experts beside an MLP."""

from typing import Any

import pytest
import torch
import transformers

from roseinfer import InferenceEngine
from tests.roseinfer.models import (
    answers,
    engine_run_by,
    needs_decoder,
    prompts,
    reference,
)
from tests.roseinfer.native.kinds import wide

pytestmark = needs_decoder


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("gemma4", {"head_dim": 22, "global_head_dim": 34, "hidden_size": 130}),
        ("gemma4", {"num_key_value_heads": 1, "attention_bias": True, "num_kv_shared_layers": 0}),
        (
            "gemma4",
            {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "attention_k_eq_v": True},
        ),
        ("gemma4", {"hidden_size_per_layer_input": 10, "tie_word_embeddings": False}),
        ("gemma4_moe", {"num_kv_shared_layers": 1, "hidden_size_per_layer_input": 6}),
        ("gemma4_moe", {"top_k_experts": 3, "attention_k_eq_v": False}),
    ],
)
def test_odd_shapes_give_the_tokens_of_transformers(
    architecture: str, changes: dict[str, Any]
) -> None:
    # given
    model = wide(architecture, torch.float32, **{"initializer_range": 0.3, **changes})
    asked = prompts(3, 20, 9, 61)
    expected = [reference(model, prompt, 64) for prompt in asked]
    engine = engine_run_by("compiled", model, block_size=8, kv_cache_tokens=1024)
    for threads in (1, 2):
        torch.set_num_threads(threads)  # the conftest sets it back
        # when, then
        assert answers(engine, asked, 64, max_batch_size=4) == expected
    assert len({token for ids in expected for token in ids}) >= 4, "they would agree with anything"


def test_a_model_that_sees_reads_places_of_images_as_padding() -> None:
    # given
    text = wide("gemma4", torch.float32, initializer_range=0.3).config
    torch.manual_seed(1)
    config = transformers.Gemma4Config(
        text_config=text.to_dict(),
        vision_config=None,
        audio_config=None,
        image_token_id=100,
        video_token_id=101,
        audio_token_id=102,
    )
    model = transformers.Gemma4ForConditionalGeneration(config).eval()
    asked = [[3, 100, 9, 101, 101, 12], [5, 102, 8]]
    expected = [reference(model, prompt, 32) for prompt in asked]
    # when
    engine = engine_run_by("compiled", model, kv_cache_tokens=512)
    # then
    assert answers(engine, asked, 32) == expected
    padded = [[0 if token in (100, 101, 102) else token for token in ids] for ids in asked]
    assert answers(engine, padded, 32) == expected


def test_shared_keys_and_values_are_in_the_cache_once() -> None:
    # given
    engine = engine_run_by("compiled", wide("gemma4"), kv_cache_tokens=512)
    other = engine_run_by("transformers", wide("gemma4"), kv_cache_tokens=512)
    # then
    assert [keys.shape[1:] for keys in engine.cache.keys] == [(2, 32), (2, 64), (2, 0), (2, 0)]
    assert engine.cache.size_bytes < 0.55 * other.cache.size_bytes


@pytest.mark.parametrize(
    ("architecture", "changes", "reason"),
    [
        ("gemma4", {"global_head_dim": 640}, "heads of 640 are above 576"),
        ("gemma4", {"hidden_size_per_layer_input": 7}, "a matrix has an odd number of inputs"),
        ("gemma4_moe", {"hidden_size": 120}, "120 outputs, no multiple of 16"),
    ],
)
def test_what_the_library_cannot_hold_is_left_to_transformers(
    architecture: str, changes: dict[str, Any], reason: str
) -> None:
    model = wide(architecture, num_attention_heads=1, num_key_value_heads=1, **changes)
    engine = InferenceEngine.from_model(model, kv_cache_tokens=64)
    assert "transformers' own code" in engine.decoder_description
    assert reason in engine.decoder_description
