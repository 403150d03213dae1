"""Mixtures of experts: each row gets its own experts, and no other row changes what they make."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from roseinfer import InferenceEngine
from roseinfer.model import families
from roseinfer.model.experts import ExpertParts, find_experts
from roseinfer.model.probe import Reference
from roseinfer.model.routes import FollowedRoutes, Routes
from roseinfer.native.library import MAX_EXPERTS
from roseinfer.sessions.session import Chunk
from tests.roseinfer.models import (
    answers,
    build,
    engine_run_by,
    first_logits,
    needs_decoder,
    prompts,
    reference,
)

pytestmark = needs_decoder

# Matrices that fill tiles and quantized groups.
WIDE = {
    "hidden_size": 128,
    "moe_intermediate_size": 64,
    "intermediate_size": 128,
    "shared_expert_intermediate_size": 192,
    "initializer_range": 0.1,
}


def wide(architecture: str, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Any:
    """Weights are bfloat16's, whatever the type; biases and sinks are not zero."""
    if architecture == "gpt_oss":  # heads that attend in pairs
        changes = {"head_dim": 32, "intermediate_size": 64} | changes
    model = build(architecture, **{**WIDE, **changes})
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "sinks")):
            torch.nn.init.normal_(parameter, 0.0, 0.5, generator=torch.Generator().manual_seed(3))
    return model.to(torch.bfloat16).to(dtype)


@pytest.mark.parametrize(
    "architecture", ["mixtral", "qwen2_moe", "glm4_moe", "granitemoeshared", "gpt_oss"]
)
def test_bfloat16_is_near_to_float32(any_build: None, architecture: str) -> None:
    # given
    exact = engine_run_by("compiled", wide(architecture, torch.float32), kv_cache_tokens=512)
    # when
    engine = InferenceEngine.from_model(wide(architecture), kv_cache_tokens=512)
    # then: but for the tokens that near ties send to another expert
    assert engine.decoder_description.startswith("compiled")
    found, expected = (first_logits(each).view(3, -1) for each in (engine, exact))
    errors = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert errors.median() < 0.1


def test_more_rows_than_are_brought_together_at_once() -> None:
    # given
    model = build("qwen3_moe", max_position_embeddings=2048)
    expected = reference(model, prompts(1100)[0], 4)
    # when
    engine = engine_run_by("compiled", model, kv_cache_tokens=2048)
    # then
    assert answers(engine, prompts(1100), 4, max_step_tokens=2048) == [expected]


@pytest.mark.parametrize(
    "changes",
    [
        {"num_experts_per_tok": 1},
        {"num_experts_per_tok": 4},
        {"norm_topk_prob": False},
        {"num_local_experts": 33, "num_experts_per_tok": 5},
        {"decoder_sparse_step": 2},
        {"mlp_only_layers": [0, 1, 2]},
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_mixtures_give_the_tokens_of_transformers(changes: dict[str, Any], threads: int) -> None:
    # given
    model = build("qwen3_moe", **changes)
    expected = [reference(model, prompt, 8) for prompt in prompts(3, 20, 9)]
    torch.set_num_threads(threads)  # the conftest sets it back
    # when
    engine = engine_run_by("compiled", model, kv_cache_tokens=1024)
    # then
    assert answers(engine, prompts(3, 20, 9), 8) == expected


def test_clamped_gates_biases_and_sinks_give_the_tokens_of_transformers() -> None:
    # given: gates beyond the limit, on both sides
    model = wide("gpt_oss", torch.float32, swiglu_limit=0.5)
    expected = [reference(model, prompt, 8) for prompt in prompts(3, 20, 61)]
    # when
    engine = engine_run_by("compiled", model, kv_cache_tokens=1024)
    # then
    assert answers(engine, prompts(3, 20, 61), 8) == expected


@pytest.mark.parametrize("architecture", ["glm4_moe", "dots1", "minimax_m2"])
def test_a_bias_of_the_scores_chooses_and_does_not_weigh(architecture: str) -> None:
    # given: biases as large as the scores
    model = build(architecture)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(0.0, 0.5, generator=torch.Generator().manual_seed(5))
    expected = [reference(model, prompt, 8) for prompt in prompts(3, 20, 9)]
    # when
    engine = engine_run_by("compiled", model, kv_cache_tokens=1024)
    # then
    assert answers(engine, prompts(3, 20, 9), 8) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_local_experts": MAX_EXPERTS + 1},
            f"{MAX_EXPERTS + 1} experts are above {MAX_EXPERTS}",
        ),
        ({"moe_intermediate_size": 20}, "an expert has 40 outputs, no multiple of 16"),
    ],
)
def test_what_the_library_cannot_hold_is_left_to_transformers(
    changes: dict[str, Any], message: str
) -> None:
    engine = InferenceEngine.from_model(build("qwen3_moe", **changes), kv_cache_tokens=64)
    assert message in engine.decoder_description


# Routes


@pytest.mark.parametrize(
    "wrong",
    [
        {"bias": torch.tensor([9.0, 0, 0, 0])},
        {"scale": 2.0},
        {"normalizes": False},
        {"router": torch.ones(4, 64)},
    ],
)
def test_a_mixture_that_differs_is_not_used(
    wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: parts that say something else than the model does
    def find_wrong(*arguments: Any) -> ExpertParts:
        return replace(find_experts(*arguments), **wrong)

    monkeypatch.setattr(families, "find_experts", find_wrong)
    model = build("qwen3_moe", norm_topk_prob=True)
    expected = [reference(model, prompt, 8) for prompt in prompts(20)]
    # when
    engine = InferenceEngine.from_model(model, kv_cache_tokens=512)
    # then: transformers' code runs it, on weights that came back
    assert "its logits differ from the model's" in engine.decoder_description
    assert answers(engine, prompts(20), 8) == expected


@pytest.mark.parametrize("run_by", ["compiled", "transformers"])
def test_a_near_tie_between_experts_is_no_difference(run_by: str) -> None:
    # given: routers that rounding decides for, between experts that make much
    model = build("mixtral", initializer_range=0.1)
    for layer in model.model.layers:
        router = layer.mlp.gate.weight.data
        router[1:] = router[:1] + 1e-4 * router[1:]
    # when, then: the engine is not refused
    engine_run_by(run_by, model.to(torch.bfloat16), kv_cache_tokens=512)


def test_routes_of_a_model_without_experts_are_none() -> None:
    model = build("llama")
    routes = Routes(model)
    with routes.recording([3]):
        model(input_ids=torch.tensor([[1, 2, 3]]))
    assert not routes.are_known([3])
    assert Reference(model).tolerance == 1e-3


@pytest.mark.parametrize(
    "answer",
    [
        lambda logits: logits,
        lambda logits: (logits, logits.topk(2).values),
        lambda logits: (logits.sum(), logits.topk(2).indices),
        lambda logits: {"experts": logits},
        lambda logits: (logits[:2], logits[:2].topk(2).indices),
    ],
)
def test_routers_that_answer_otherwise_are_not_followed(answer: Callable[[Tensor], Any]) -> None:
    # given
    mlp = torch.nn.Module()
    mlp.experts, mlp.gate = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    mlp.gate.register_forward_hook(lambda _module, _inputs, logits: answer(logits))
    routes = Routes(mlp)
    # when
    with routes.recording([3]):
        mlp.gate(torch.ones(3, 4))
    # then
    assert not routes.are_known([3])


@pytest.mark.parametrize("expert", [-1, 4])
def test_an_expert_that_does_not_exist_is_refused(
    expert: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    engine = engine_run_by("compiled", build("qwen3_moe"), kv_cache_tokens=64)
    session = engine.new_session([1, 2, 3])
    session.blocks = engine.cache.pool.allocate(1)
    routes = FollowedRoutes(Routes(build("qwen3_moe")), [session])
    wrong = torch.full((3, 3, 2), expert, dtype=torch.int32)
    monkeypatch.setattr(routes, "choices", lambda _: wrong)
    # when, then
    with pytest.raises(ValueError, match="an expert that was to be taken does not exist"):
        engine._runner.run([Chunk(session, 3)], every_row=True, routes=routes)
