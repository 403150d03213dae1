"""The fused decoder computes what transformers' code does, or leaves the model to it."""

import logging
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import interpreter

from roseinfer.gpu import decoder as decoder_module
from roseinfer.gpu.decoder import FusedModel
from roseinfer.gpu.skinny_gemm import MAX_ROWS
from roseinfer.model.transformers_model import PackedModel
from roseinfer.sessions.session import Chunk
from tests.roseinfer.gpu.attention_cases import DEVICE
from tests.roseinfer.models import (
    COMPILED,
    NOT_FUSED,
    answers,
    build,
    engine_run_by,
    prompts,
    reference,
    tiny_llama,
)

#: Whose layers have nothing that no other has: mistral's and gemma2's are theirs and more.
PLAIN = {"llama", "gemma"}
ARCHITECTURES = [
    pytest.param(name, marks=pytest.mark.sweep if name in PLAIN else ())
    for name in sorted(COMPILED - NOT_FUSED)
]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_tokens_are_those_of_transformers(architecture: str) -> None:
    """Prefill of many rows and of few, decode of some sequences and of one."""
    model = smallest(architecture)
    asked = prompts(3, 20, 9)
    expected = [reference(model, prompt, 4) for prompt in asked]
    engine = engine_run_by("triton", model, kv_cache_tokens=100, block_size=5)
    assert isinstance(engine._runner, FusedModel)
    assert answers(engine, asked, 4, max_step_tokens=MAX_ROWS + 8) == expected
    engine.cache.pool.check_integrity()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logits_are_right_in_the_types_of_a_gpu(dtype: torch.dtype) -> None:
    """The load probe holds the decoder to the model's own logits; what it refuses is not used."""
    for architecture in ("llama", "gpt2"):
        model = build(architecture, num_hidden_layers=1).to(dtype)
        engine = engine_run_by("triton", model, kv_cache_tokens=64)
        assert isinstance(engine._runner, FusedModel)


def smallest(architecture: str) -> Any:
    """With a layer of each kind: the interpreter takes its time for each."""
    if architecture == "gemma3":
        return build(architecture)
    model = build(architecture, num_hidden_layers=2)
    kinds = set(getattr(model.config, "layer_types", None) or ())
    return model if len(kinds) > 1 else build(architecture, num_hidden_layers=1)


class Launches(TorchDispatchMode):
    """What a GPU would be given: our kernels, and what torch computes but for views."""

    free = (
        "view",
        "slice",
        "select",
        "split",
        "unsqueeze",
        "detach",
        "empty",
        "alias",
        "t.",
        "flatten",
    )

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.names: list[str] = []
        launch, inside = interpreter.GridExecutor.__call__, [False]
        self._inside = inside

        def counted(kernel: Any, *arguments: Any, **constants: Any) -> None:
            self.names.append(kernel.fn.__name__)
            inside[0] = True  # the interpreter uses torch as well
            launch(kernel, *arguments, **constants)
            inside[0] = False

        monkeypatch.setattr(interpreter.GridExecutor, "__call__", counted)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        if not self._inside[0] and not any(word in name for word in self.free):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(DEVICE.type != "cpu", reason="the interpreter counts")
def test_a_layer_of_a_decode_step_is_nine_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def launches(layers: int) -> list[str]:
        # given
        model = tiny_llama(num_hidden_layers=layers)
        engine = engine_run_by("triton", model, kv_cache_tokens=64)
        session = engine.new_session(prompts(5)[0])
        session.blocks, session.computed = engine.cache.pool.allocate(1), 4
        # when
        with monkeypatch.context() as patch, Launches(patch) as seen:
            engine._runner.run([Chunk(session, 1)])
        return seen.names

    # then
    one, two = launches(1), launches(2)
    layer = ["norm", "skinny_gemm", "rope", "attend", "reduce", "skinny_gemm"]
    layer += ["norm", "skinny_gemm", "skinny_gemm"]
    assert sorted(two) == sorted(one + [f"{name}_kernel" for name in layer])
    # The step's numbers, embeddings, to float32, the rows wanted, the last norm, the head.
    assert len(one) == len(layer) + 6, one


def test_the_model_and_the_decoder_share_their_weights() -> None:
    for architecture in ("llama", "gpt2"):
        model = build(architecture, num_hidden_layers=1).to(DEVICE)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        engine = engine_run_by("triton", model, kv_cache_tokens=64)
        assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
        decoder: Any = engine._runner
        memory = {p.untyped_storage().data_ptr() for p in model.parameters()}
        for layer in decoder._layers:
            for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down):
                assert matrix.weight.untyped_storage().data_ptr() in memory


def test_a_decoder_that_differs_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given: a decoder that takes the layers in another order
    class Wrong(FusedModel):
        def bind(self, cache: Any) -> None:
            super().bind(cache)
            self._layers = self._layers[::-1]

    monkeypatch.setattr(decoder_module, "FusedModel", Wrong)
    model = build("llama", num_hidden_layers=2)
    expected = [reference(model, prompt, 4) for prompt in prompts(9)]
    # when
    with caplog.at_level(logging.WARNING):
        engine = engine_run_by("triton", model, kv_cache_tokens=64)
    # then: transformers' code runs it over the kernels
    assert "the fused decoder differs" in caplog.text
    assert isinstance(engine._runner, PackedModel)
    assert answers(engine, prompts(9), 4, max_step_tokens=MAX_ROWS + 8) == expected
