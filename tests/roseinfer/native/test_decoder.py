"""The compiled decoder computes what transformers' code does, or leaves the model to it."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from roseinfer import InferenceEngine, native
from roseinfer.model.attention_layers import AttentionLayers
from roseinfer.model.families import Parts, find_parts
from roseinfer.native import decoder as decoder_module
from roseinfer.native import library
from tests.roseinfer.models import answers, build, first_logits, needs_decoder, prompts, reference

pytestmark = needs_decoder


def is_compiled(engine: InferenceEngine) -> bool:
    return isinstance(engine._runner, native.NativeDecoder)


# Shapes that a kernel could get wrong: blocks and heads that are not whole vectors, more query
# heads for a key than a tile has rows, biases, tied and untied embeddings, a window of one block.
ODD = {
    "small blocks": ("llama", {}, 3),
    "large blocks": ("mistral", {"sliding_window": 32}, 32),
    "narrow heads": ("qwen3", {"head_dim": 6}, 8),
    "many heads share one": ("llama", {"num_attention_heads": 16, "num_key_value_heads": 1}, 16),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}, 16),
    "tied": ("llama", {"tie_word_embeddings": True, "vocab_size": 131}, 16),
    "an odd vocabulary": ("gpt2", {"vocab_size": 131}, 16),
    "neighbours of narrow heads": ("glm4", {"head_dim": 12}, 8),
    "a layer norm beside attention": ("cohere2", {"head_dim": 12, "logit_scale": 0.3}, 8),
    "experts with biases": ("gpt_oss", {"head_dim": 12}, 8),
    "norms for each head": ("cohere_norms", {"head_dim": 12}, 8),
    "layer norms for each head": ("stablelm_norms", {}, 16),
    "layer norms of heads": ("phi_norms", {}, 16),
    "layer norms around one": ("nemotron", {"attention_bias": True, "mlp_bias": True}, 16),
    "queries, keys and values in turn": ("gpt_neox", {"attention_bias": True}, 16),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("threads", [1, 2])
def test_odd_shapes_give_the_tokens_of_transformers(name: str, threads: int) -> None:
    architecture, changes, block_size = ODD[name]
    model = build(architecture, **changes)
    for weight, parameter in model.named_parameters():
        # Biases start as zeros and norms as ones: no test of either.
        if parameter.dim() == 1 or weight.endswith("norm.weight"):
            torch.nn.init.normal_(parameter, 1.0, 0.2, generator=torch.Generator().manual_seed(3))
    asked = prompts(3, 20, 9, 61)
    expected = [reference(model, prompt, 8) for prompt in asked]
    torch.set_num_threads(threads)  # the conftest sets it back
    engine = InferenceEngine.from_model(model, block_size=block_size, kv_cache_tokens=1024)
    assert is_compiled(engine)
    assert answers(engine, asked, 8, max_batch_size=4) == expected


def test_a_soft_cap_that_the_family_does_not_read() -> None:
    # given
    asked = prompts(5, 20)
    expected = [reference(build("qwen3"), prompt, 8) for prompt in asked]
    # when
    engine = InferenceEngine.from_model(build("qwen3", final_logit_softcapping=0.01))
    # then
    assert is_compiled(engine)
    assert answers(engine, asked, 8, max_batch_size=2) == expected


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen3", "gpt2", "gemma2"])
def test_bfloat16_is_nearer_to_float32_than_transformers(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only weights and cache are rounded, not what lies between."""
    exact, fast = _logits(architecture, torch.float32), _logits(architecture, torch.bfloat16)
    monkeypatch.setattr(library, "load", lambda: library.Loaded(None, "a test"))
    plain = _logits(architecture, torch.bfloat16)
    assert (fast - exact).norm() < (plain - exact).norm()


def _logits(architecture: str, dtype: torch.dtype) -> Tensor:
    """Logits of prompts computed in chunks, of which some are a single token."""
    model: Any = build(architecture).to(torch.bfloat16).to(dtype)
    engine = InferenceEngine.from_model(model, kv_cache_tokens=1024)
    return first_logits(engine, max_step_tokens=8)


def test_a_decoder_that_differs_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given: a family whose residual is not what the decoder assumes
    def wrong(model: Any, layers: AttentionLayers) -> Parts | None:
        parts = find_parts(model, layers)
        assert parts is not None
        parts.layers[0], parts.layers[1] = parts.layers[1], parts.layers[0]
        return parts

    monkeypatch.setattr(decoder_module, "find_parts", wrong)
    model = build("llama")
    expected = [reference(model, prompt, 8) for prompt in prompts(20)]
    # when
    with caplog.at_level(logging.WARNING):
        engine = InferenceEngine.from_model(model, kv_cache_tokens=512)
    # then: transformers' code runs it, on weights that came back
    assert "compiled decoder differs" in caplog.text
    assert not is_compiled(engine)
    assert answers(engine, prompts(20), 8, max_batch_size=4) == expected


def test_what_is_unusual_is_left_to_transformers() -> None:
    hooked = build("llama")
    hooked.model.layers[0].mlp.register_forward_hook(lambda *_: None)
    unusual = [
        build("gpt2", scale_attn_by_inverse_layer_idx=True),
        build("llama", hidden_act="relu"),
        hooked,
        build("llama").to(torch.float16),
    ]
    for model in unusual:
        assert not is_compiled(InferenceEngine.from_model(model, kv_cache_tokens=64))
