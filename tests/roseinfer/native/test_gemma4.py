"""Gemma 4 in the compiled decoder: heads of two sizes, keys and values that layers share, inputs
of each layer's own, and experts beside an MLP."""

from functools import partial
from typing import Any

import pytest
import torch
import transformers

from roseinfer import InferenceEngine
from tests.roseinfer.models import (
    answers,
    build,
    engine_run_by,
    needs_decoder,
    prompts,
    reference,
)
from tests.roseinfer.native.checks import (
    as_stored,
    check_batches,
    check_bfloat16,
    check_chunks,
    check_early_rows,
    check_quantized,
    check_weights_come_back,
)

pytestmark = needs_decoder

SLIDING, FULL = "sliding_attention", "full_attention"

# Matrices of whole quantized groups, and heads that attend in pairs.
WIDE = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "head_dim": 32,
    "global_head_dim": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
}
SMALL = {
    "layer_types": [SLIDING, FULL, SLIDING, FULL],
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 64,
    "tie_word_embeddings": True,
    "final_logit_softcapping": 30.0,
}
MIXTURE = {"moe_intermediate_size": 64, "num_experts": 8}
KINDS = {"gemma4": SMALL, "gemma4_moe": MIXTURE}


def wide(architecture: str, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Any:
    model = build(architecture, **{**WIDE, **KINDS[architecture], **changes})
    for number, layer in enumerate(model.model.layers):
        layer.layer_scalar.fill_(1.0 - 0.125 * number)
    model = as_stored(model, dtype)
    for module in model.modules():
        if hasattr(module, "embed_scale"):  # as transformers has it after loading
            module.embed_scale = torch.tensor(module.scalar_embed_scale)
    return model


@pytest.mark.parametrize("weights", [None, "int8", "int4"])
@pytest.mark.parametrize("architecture", KINDS)
def test_a_token_has_the_same_bits_in_any_chunk(
    any_build: None, architecture: str, weights: str | None
) -> None:
    check_chunks(
        InferenceEngine.from_model(wide(architecture), kv_cache_tokens=512, weights=weights)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", KINDS)
def test_a_request_has_the_same_bits_in_any_batch(
    any_build: None, architecture: str, dtype: torch.dtype
) -> None:
    check_batches(InferenceEngine.from_model(wide(architecture, dtype), kv_cache_tokens=1024))


@pytest.mark.parametrize("architecture", KINDS)
def test_bfloat16_is_near_to_float32(any_build: None, architecture: str) -> None:
    check_bfloat16(partial(wide, architecture))


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantized_weights_are_those_of_the_model(weights: str) -> None:
    # its scores are not divided by the heads' size
    check_quantized(partial(wide, "gemma4"), weights, limit=0.06)


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


@pytest.mark.parametrize("architecture", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_without_logits_leave_early_and_change_no_bit(
    architecture: str, dtype: torch.dtype
) -> None:
    """Those of a model whose last layers store nothing long before the last one."""
    check_early_rows(engine_run_by("compiled", wide(architecture, dtype), kv_cache_tokens=1024))


@pytest.mark.parametrize("architecture", KINDS)
def test_weights_come_back_as_the_model_keeps_them(architecture: str) -> None:
    check_weights_come_back(wide(architecture, torch.float32))


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
