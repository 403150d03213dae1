"""Packed linear layers give what plain ones give."""

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from roseinfer import InferenceEngine
from roseinfer.model.packed_linear import PackedLinear, is_plain, pack_linears
from tests.roseinfer.models import answers, build, prompts, random, reference

# Packing bfloat16 takes instructions that not every processor has.
DTYPES = [
    torch.float32,
    *([torch.bfloat16] if torch.ops.mkldnn._is_mkldnn_bf16_supported() else []),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_computes_what_the_plain_one_does(dtype: torch.dtype, bias: bool) -> None:
    plain = nn.Linear(48, 80, bias=bias, dtype=dtype)
    packed = PackedLinear(plain.weight, plain.bias)
    activated = PackedLinear(plain.weight, plain.bias, "gelu")
    assert torch.equal(packed.weight, plain.weight)
    for rows in (1, 8, 40):
        x = random(1, rows, 48, dtype=dtype)
        torch.testing.assert_close(packed(x), plain(x))
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        expected = nn.functional.gelu(plain(x))
        torch.testing.assert_close(activated(x), expected, atol=tolerance, rtol=tolerance)


def test_a_type_that_the_processor_cannot_pack_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)

    assert not is_plain(nn.Linear(8, 8, dtype=torch.bfloat16))
    assert is_plain(nn.Linear(8, 8))


def test_every_linear_layer_is_packed_and_the_model_says_the_same() -> None:
    for architecture in ("llama", "gpt2"):
        model = build(architecture)
        ids = torch.tensor([[5, 7, 11]])
        expected = model(input_ids=ids).logits
        assert pack_linears(model) > 6
        assert not any(type(module) in (nn.Linear, Conv1D) for module in model.modules())
        torch.testing.assert_close(model(input_ids=ids).logits, expected, atol=1e-4, rtol=1e-4)


def test_a_layer_used_in_two_places_stays_one() -> None:
    shared = nn.Linear(8, 8)
    model = nn.ModuleDict({"a": nn.ModuleDict({"x": shared}), "b": nn.ModuleDict({"x": shared})})
    assert pack_linears(model) == 1
    assert model["a"]["x"] is model["b"]["x"]  # type: ignore[index]


@pytest.mark.usefixtures("no_native")
def test_a_tied_embedding_keeps_its_rows() -> None:
    model = build("llama", tie_word_embeddings=True)
    before = model.get_input_embeddings().weight.clone()
    InferenceEngine.from_model(model, kv_cache_tokens=256)
    assert torch.equal(model.get_input_embeddings().weight, before)


def test_a_subclass_or_a_hooked_layer_is_left_alone() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    hooked = nn.Linear(8, 8)
    hooked.register_forward_hook(lambda module, args, output: output + 1)
    assert pack_linears(nn.Sequential(Doubled(8, 8), hooked)) == 0


@pytest.mark.usefixtures("no_native")
def test_without_onednn_layers_stay_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model, asked = build("llama"), prompts(3, 20, 41)
    expected = [reference(model, prompt, 8) for prompt in asked]
    assert answers(InferenceEngine.from_model(model, kv_cache_tokens=1024), asked, 8) == expected
    assert any(type(module) is nn.Linear for module in model.modules())
