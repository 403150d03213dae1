"""What holds of every kind of layer in the compiled decoder."""

import pytest
import torch
from torch import Tensor

from roseinfer import InferenceEngine, native
from roseinfer.sessions.session import Chunk
from tests.roseinfer.models import (
    answers,
    check_left_in_order,
    check_logits,
    engine_run_by,
    first_logits,
    logits_behind_each_token,
    logits_of,
    needs_decoder,
    prompts,
)
from tests.roseinfer.native.kinds import wide

pytestmark = needs_decoder

STATES = ("qwen3_next", "qwen3_5", "lfm2", "granitemoehybrid", "nemotron_h", "falcon_h1", "mamba2")
KINDS = ("gemma4", "gemma4_moe", "deepseek_v2", "glm4_moe_lite", "minicpm3", *STATES)


@pytest.mark.parametrize("weights", [None, "int8", "int4"])
@pytest.mark.parametrize("architecture", [*KINDS, "qwen2_moe", "gpt_oss"])
def test_a_token_has_the_same_bits_in_any_chunk(
    any_build: None, architecture: str, weights: str | None
) -> None:
    # given
    engine = InferenceEngine.from_model(wide(architecture), kv_cache_tokens=512, weights=weights)
    assert engine.decoder_description.startswith("compiled")
    (prompt,) = prompts(75)
    # when
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
    # given
    engine = InferenceEngine.from_model(wide(architecture, dtype), kv_cache_tokens=1024)
    asked = prompts(3, 20, 9, 61, 5, 7, 30, 11, 2)

    def logits(some: list[list[int]], **limits: int) -> list[Tensor]:
        seen = logits_of(engine, lambda: answers(engine, some, 4, **limits))
        return [torch.stack(rows) for rows in seen.values()]

    # when
    alone = [logits([prompt])[0] for prompt in asked]
    together = logits(asked, max_batch_size=9, max_step_tokens=512)
    # then
    assert all(any(torch.equal(one, other) for other in together) for one in alone)


@pytest.mark.parametrize("architecture", KINDS)
def test_bfloat16_is_about_as_near_to_float32_as_transformers_has_it(
    any_build: None, architecture: str
) -> None:
    # given
    exact = engine_run_by("compiled", wide(architecture, torch.float32), kv_cache_tokens=512)
    plain = engine_run_by("transformers", wide(architecture), kv_cache_tokens=512)
    # when
    engine = InferenceEngine.from_model(wide(architecture), kv_cache_tokens=512)
    # then
    expected = first_logits(exact)
    found, other = ((first_logits(each) - expected).norm() for each in (engine, plain))
    assert found < 1.5 * other


# Scores of Gemma 4 are not divided by the heads' size. Weights of Youtu stand for a head's keys,
# too, and are multiplied the other way round.
@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize(("architecture", "limit"), [("gemma4", 0.06), ("youtu", 0.04)])
def test_quantized_weights_are_those_of_the_model(
    architecture: str, limit: float, weights: str
) -> None:
    # given: a model that gets what its quantized weights mean
    quantized = wide(architecture)
    engine = InferenceEngine.from_model(quantized, kv_cache_tokens=512, weights=weights)
    assert isinstance(engine._runner, native.NativeDecoder)
    engine._runner.restore()
    # when
    engine = InferenceEngine.from_model(wide(architecture), kv_cache_tokens=512, weights=weights)
    # then
    plain = engine_run_by("transformers", quantized, kv_cache_tokens=512)
    check_logits(engine, plain, limit=limit)


# The last layers of Gemma 4 store nothing; the last one of those with a state has one.
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "architecture",
    [
        *("gemma4", "gemma4_moe", "glm4_moe_lite", *STATES),
        *("llama", "gpt2", "gemma2", "cohere", "qwen2_moe"),
    ],
)
def test_rows_without_logits_leave_early_and_change_no_bit(
    architecture: str, dtype: torch.dtype
) -> None:
    # given: prompts, and one token, in a step
    engine = engine_run_by("compiled", wide(architecture, dtype), kv_cache_tokens=1024)
    sessions = [engine.new_session(prompt) for prompt in prompts(9, 30, 1, 17)]
    for session in sessions:
        session.blocks += engine.cache.pool.allocate(4)
    chunks = [Chunk(session, session.num_pending) for session in sessions]
    # when
    _, wanted = engine._runner.run(chunks)
    _, all_rows = engine._runner.run(chunks, every_row=True)
    # then
    assert len(all_rows) == 57
    assert torch.equal(wanted, all_rows[[8, 38, 39, 56]])


# Outputs of delta nets' matrices are computed in another order.
@pytest.mark.parametrize(
    "architecture",
    [
        *("gemma4", "gemma4_moe", "deepseek_v3", "youtu"),
        *("qwen3_next", "qwen3_5", "qwen3_moe", "gpt_oss"),
    ],
)
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
