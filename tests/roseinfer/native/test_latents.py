"""Layers with latents in the compiled decoder: the tokens of transformers, the same bits in any
batch and chunk, and a cache of latents."""

from functools import partial
from typing import Any

import pytest
import torch

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

# Matrices of whole quantized groups, keys and values that AMX multiplies, and more heads than are
# attended for at once.
WIDE = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 96,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "initializer_range": 0.1,
}
KINDS = ["deepseek_v2", "glm4_moe_lite", "minicpm3"]


def wide(architecture: str, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Any:
    return as_stored(build(architecture, **{**WIDE, **changes}), dtype)


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
    """Those too that stand for a head's keys and are multiplied the other way round."""
    check_quantized(partial(wide, "youtu"), weights)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("deepseek_v3", {"q_lora_rank": None, "n_group": 2, "topk_group": 1}),
        ("deepseek_v3", {"attention_bias": True, "rope_interleave": False}),
        ("deepseek_v3", {"qk_nope_head_dim": 22, "v_head_dim": 48, "kv_lora_rank": 80}),
        ("glm4_moe_lite", {"q_lora_rank": 200, "qk_rope_head_dim": 14}),
        ("deepseek_v2", {"q_lora_rank": None}),
        (
            "deepseek_v2",
            {"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1},
        ),
        ("minicpm3", {"scale_depth": 0.7, "scale_emb": 3}),
        ("youtu", {"num_attention_heads": 13, "num_key_value_heads": 13, "hidden_size": 130}),
        (
            "youtu",
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 1e4,
                    "factor": 4.0,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                    "original_max_position_embeddings": 32,
                }
            },
        ),
    ],
)
def test_odd_shapes_give_the_tokens_of_transformers(
    architecture: str, changes: dict[str, Any], threads: int
) -> None:
    # given
    model = wide(architecture, torch.float32, **{"initializer_range": 0.3, **changes})
    for name, tensor in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(tensor, 0.0, 0.5, generator=torch.Generator().manual_seed(3))
    asked = prompts(3, 20, 9, 61)
    expected = [reference(model, prompt, 64) for prompt in asked]
    torch.set_num_threads(threads)  # the conftest sets it back
    # when
    engine = engine_run_by("compiled", model, block_size=8, kv_cache_tokens=1024)
    # then
    assert answers(engine, asked, 64, max_batch_size=4) == expected
    assert len({token for ids in expected for token in ids}) >= 4, "they would agree with anything"


def test_the_cache_has_a_latent_of_each_token() -> None:
    # given
    engine = engine_run_by("compiled", wide("glm4_moe_lite"), kv_cache_tokens=512)
    other = engine_run_by("transformers", wide("glm4_moe_lite"), kv_cache_tokens=512)
    # then
    for keys, values in zip(engine.cache.keys, engine.cache.values, strict=True):
        assert (keys.shape[1:], values.shape[1:]) == ((1, 96 + 32), (1, 96))
    assert engine.cache.size_bytes < 0.35 * other.cache.size_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_without_logits_leave_the_last_layer_early_and_change_no_bit(
    dtype: torch.dtype,
) -> None:
    check_early_rows(engine_run_by("compiled", wide("glm4_moe_lite", dtype), kv_cache_tokens=1024))


@pytest.mark.parametrize("architecture", ["deepseek_v3", "youtu"])
def test_weights_come_back_as_the_model_keeps_them(architecture: str) -> None:
    check_weights_come_back(wide(architecture, torch.float32))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_lora_rank": 24}, "latents of 24 and values of 64 are no multiples of 16"),
        ({"v_head_dim": 20}, "latents of 96 and values of 20 are no multiples of 16"),
        ({"kv_lora_rank": 560}, "heads of 592 are above 576"),
    ],
)
def test_what_the_library_cannot_hold_is_left_to_transformers(
    changes: dict[str, Any], reason: str
) -> None:
    engine = InferenceEngine.from_model(wide("youtu", **changes), kv_cache_tokens=64)
    assert "transformers' own code" in engine.decoder_description
    assert reason in engine.decoder_description
