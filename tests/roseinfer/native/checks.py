"""What holds of every kind of layer in the compiled decoder."""

from collections.abc import Callable
from typing import Any

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
    prompts,
)


def as_stored(model: Any, dtype: torch.dtype) -> Any:
    """The model with weights that are bfloat16's, whatever `dtype` is, and with norms and biases
    that are neither ones nor zeros."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            generator = torch.Generator().manual_seed(3)
            torch.nn.init.normal_(parameter, 0.5, 0.2, generator=generator)
    return model.to(torch.bfloat16).to(dtype)


def check_chunks(engine: InferenceEngine) -> None:
    """A token has the same bits in any chunk."""
    assert engine.decoder_description.startswith("compiled")
    (prompt,) = prompts(75)
    whole = logits_behind_each_token(engine, prompt, 75)
    for chunk in (1, 2, 7, 33):
        assert torch.equal(logits_behind_each_token(engine, prompt, chunk), whole), chunk
    check_left_in_order(engine)


def check_batches(engine: InferenceEngine) -> None:
    """A request has the same bits in any batch."""
    asked = prompts(3, 20, 9, 61, 5, 7, 30, 11, 2)

    def logits(some: list[list[int]], **limits: int) -> list[Tensor]:
        seen = logits_of(engine, lambda: answers(engine, some, 4, **limits))
        return [torch.stack(rows) for rows in seen.values()]

    alone = [logits([prompt])[0] for prompt in asked]
    together = logits(asked, max_batch_size=9, max_step_tokens=512)
    assert all(any(torch.equal(one, other) for other in together) for one in alone)


def check_bfloat16(make: Callable[[torch.dtype], Any]) -> None:
    """The model in bfloat16 is about as near to float32 as transformers has it."""
    # given
    exact = engine_run_by("compiled", make(torch.float32), kv_cache_tokens=512)
    plain = engine_run_by("transformers", make(torch.bfloat16), kv_cache_tokens=512)
    # when
    engine = InferenceEngine.from_model(make(torch.bfloat16), kv_cache_tokens=512)
    # then
    expected = first_logits(exact)
    found, other = ((first_logits(each) - expected).norm() for each in (engine, plain))
    assert found < 1.5 * other


def check_quantized(make: Callable[[], Any], weights: str, limit: float = 0.04) -> None:
    """It computes with what its quantized weights mean."""
    quantized = make()
    engine = InferenceEngine.from_model(quantized, kv_cache_tokens=512, weights=weights)
    assert isinstance(engine._runner, native.NativeDecoder)
    # when the model gets what its quantized weights mean
    engine._runner.restore()
    # then
    check_logits(
        InferenceEngine.from_model(make(), kv_cache_tokens=512, weights=weights),
        engine_run_by("transformers", quantized, kv_cache_tokens=512),
        limit=limit,
    )


def check_early_rows(engine: InferenceEngine) -> None:
    """Rows without logits leave the last layer early, and that changes no bit."""
    # given: prompts, and one token, in a step
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


def check_weights_come_back(model: Any) -> None:
    """As the model keeps them."""
    # given
    expected = {name: parameter.clone() for name, parameter in model.named_parameters()}
    engine = engine_run_by("compiled", model, kv_cache_tokens=512)
    assert isinstance(engine._runner, native.NativeDecoder)
    # when
    engine._runner.restore()
    # then
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected[name]), name
