"""Layers with latents in the compiled decoder: the tokens of transformers, and a cache of
latents."""

from typing import Any

import pytest
import torch

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
        ("mistral4", {"first_k_dense_replace": 0}),
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
