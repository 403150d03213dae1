"""Layers with latents in the compiled decoder: the tokens of transformers, the same bits in any
batch and chunk, and a cache of latents."""

from typing import Any

import pytest
import torch
from torch import Tensor

from roseinfer import InferenceEngine, native
from roseinfer.sessions.session import Chunk
from tests.roseinfer.models import (
    answers,
    build,
    check_left_in_order,
    check_logits,
    engine_run_by,
    first_logits,
    logits_behind_each_token,
    logits_of,
    needs_decoder,
    prompts,
    reference,
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
    """Weights are bfloat16's, whatever the type; norms are no ones."""
    model = build(architecture, **{**WIDE, **changes})
    for parameter in model.parameters():
        if parameter.dim() == 1:
            generator = torch.Generator().manual_seed(3)
            torch.nn.init.normal_(parameter, 0.5, 0.2, generator=generator)
    return model.to(torch.bfloat16).to(dtype)


@pytest.mark.parametrize("weights", [None, "int8", "int4"])
@pytest.mark.parametrize("architecture", KINDS)
def test_a_token_has_the_same_bits_in_any_chunk(
    any_build: None, architecture: str, weights: str | None
) -> None:
    # given
    engine = InferenceEngine.from_model(wide(architecture), kv_cache_tokens=512, weights=weights)
    assert engine.decoder_description.startswith("compiled")
    (prompt,) = prompts(75)
    whole = logits_behind_each_token(engine, prompt, 75)
    # then
    for chunk in (1, 2, 7, 33):
        assert torch.equal(logits_behind_each_token(engine, prompt, chunk), whole), chunk
    check_left_in_order(engine)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", KINDS)
def test_a_request_has_the_same_bits_in_any_batch(
    any_build: None, architecture: str, dtype: torch.dtype
) -> None:
    engine = InferenceEngine.from_model(wide(architecture, dtype), kv_cache_tokens=1024)
    asked = prompts(3, 20, 9, 61, 5, 7, 30, 11, 2)

    def logits(some: list[list[int]], **limits: int) -> list[Tensor]:
        seen = logits_of(engine, lambda: answers(engine, some, 4, **limits))
        return [torch.stack(rows) for rows in seen.values()]

    alone = [logits([prompt])[0] for prompt in asked]
    together = logits(asked, max_batch_size=9, max_step_tokens=512)
    assert all(any(torch.equal(one, other) for other in together) for one in alone)


@pytest.mark.parametrize("architecture", KINDS)
def test_bfloat16_is_near_to_float32(any_build: None, architecture: str) -> None:
    # given
    exact = engine_run_by("compiled", wide(architecture, torch.float32), kv_cache_tokens=512)
    plain = engine_run_by("transformers", wide(architecture), kv_cache_tokens=512)
    # when
    engine = InferenceEngine.from_model(wide(architecture), kv_cache_tokens=512)
    # then
    expected = first_logits(exact)
    found, other = ((first_logits(each) - expected).norm() for each in (engine, plain))
    assert found < 1.5 * other


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantized_weights_are_those_of_the_model(weights: str) -> None:
    """Those too that stand for a head's keys and are multiplied the other way round."""
    quantized = wide("youtu")
    engine = InferenceEngine.from_model(quantized, kv_cache_tokens=512, weights=weights)
    assert isinstance(engine._runner, native.NativeDecoder)
    # when the model gets what its quantized weights mean
    engine._runner.restore()
    # then
    check_logits(
        InferenceEngine.from_model(wide("youtu"), kv_cache_tokens=512, weights=weights),
        engine_run_by("transformers", quantized, kv_cache_tokens=512),
    )


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
    # given: prompts, and one token, in a step
    engine = engine_run_by("compiled", wide("glm4_moe_lite", dtype), kv_cache_tokens=1024)
    sessions = [engine.new_session(prompt) for prompt in prompts(9, 30, 1, 17)]
    for session in sessions:
        session.blocks += engine.cache.pool.allocate(4)
    chunks = [Chunk(session, session.num_pending) for session in sessions]
    # when
    _, wanted = engine._runner.run(chunks)
    _, all_rows = engine._runner.run(chunks, every_row=True)
    # then
    assert torch.equal(wanted, all_rows[[8, 38, 39, 56]])


@pytest.mark.parametrize("architecture", ["deepseek_v3", "youtu"])
def test_weights_come_back_as_the_model_keeps_them(architecture: str) -> None:
    # given
    model = wide(architecture, torch.float32)
    expected = {name: parameter.clone() for name, parameter in model.named_parameters()}
    engine = engine_run_by("compiled", model, kv_cache_tokens=512)
    assert isinstance(engine._runner, native.NativeDecoder)
    # when
    engine._runner.restore()
    # then
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected[name]), name


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
