"""Weights of 8 and 4 bits: near what they replace, computed as they say, or refused."""

from typing import Any

import pytest
import torch

from rose.errors import ConfigurationError, UnsupportedModel
from roseinfer import InferenceEngine, native
from roseinfer.checkpoints.loading import load
from roseinfer.model.attention import IMPLEMENTATION
from roseinfer.model.attention_layers import find_layers
from roseinfer.model.families import find_parts
from roseinfer.model.quantization import FORMATS, quantize, quantize_model, quantize_wide
from roseinfer.model.quantized_weight import GROUP, PART, WIDE_GROUP
from roseinfer.native import build_decoder
from tests.roseinfer.models import answers, build, check_logits, needs_decoder, prompts, random

# The numbers


def test_eight_bits_are_the_nearest_multiples_of_a_group_s_scale() -> None:
    # given: groups of very different size, one of zeros
    weight = random(6, 3 * GROUP) * torch.tensor([1e-3, 1.0, 50.0]).repeat_interleave(GROUP)
    weight[2, :GROUP] = 0
    # when
    found = quantize(weight, 8)
    # then
    error = (found.dequantize() - weight).abs().unflatten(1, (-1, GROUP))
    assert (error <= 0.51 * found.scales.float()[..., None]).all()
    assert (found.dequantize()[2, :GROUP] == 0).all()


def test_four_bits_are_nearer_than_the_scale_that_reaches_the_largest() -> None:
    # given
    weight = random(64, 8 * GROUP)
    groups = weight.unflatten(1, (-1, GROUP))
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    plain = (groups / (largest / -8)).round().clamp(-8, 7) * (largest / -8)
    # when
    found = quantize(weight, 4)
    # then
    assert int(found.values.max()) < 16
    assert (found.dequantize() - weight).norm() < 0.97 * (plain - groups).norm()


def test_what_is_exactly_in_the_format_stays_as_it_is() -> None:
    for bits in (8, 4):
        first = quantize(random(5, 2 * GROUP), bits)
        assert torch.equal(quantize(first.dequantize(), bits).dequantize(), first.dequantize())


def test_eight_bits_of_the_wide_form_are_the_nearest_multiples_too() -> None:
    # given: groups of very different size, one of zeros
    weight = random(6, 3 * WIDE_GROUP)
    weight *= torch.tensor([1e-3, 1.0, 50.0]).repeat_interleave(WIDE_GROUP)
    weight[2, :WIDE_GROUP] = 0
    # when
    found = quantize_wide(weight, 8)
    # then
    again = found.dequantize()
    error = (again - weight).abs().unflatten(1, (-1, WIDE_GROUP))
    assert (error <= 0.51 * found.scales.float()[..., None]).all()
    assert (again[2, :WIDE_GROUP] == 0).all()
    assert torch.equal(quantize_wide(again, 8).dequantize(), again)


def test_four_bits_of_the_wide_form_are_nearer_than_those_of_groups_of_32() -> None:
    weight = random(64, 4 * WIDE_GROUP)
    error = (quantize_wide(weight, 4).dequantize() - weight).norm()
    assert error < 0.97 * (quantize(weight, 4).dequantize() - weight).norm()


def test_parts_of_very_different_size_and_sign_are_all_near() -> None:
    # given: parts whose largest weights are all below or all above zero, and one of zeros
    weight = random(8, 2 * WIDE_GROUP).abs()
    weight *= torch.tensor([1.0, -1.0, 0.2, 0.0, 0.1, -1.0, -0.2, 1.0]).repeat_interleave(PART)
    # when
    found = quantize_wide(weight, 4)
    # then
    error = (found.dequantize() - weight).unflatten(1, (-1, PART)).norm(dim=-1)
    assert (error <= 0.2 * weight.unflatten(1, (-1, PART)).norm(dim=-1)).all()
    assert (error[:, 3] == 0).all()


# The model


@needs_decoder
@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        *((name, {}) for name in ("llama", "qwen3", "gemma2", "gpt2", "gpt_neox", "lfm2", "bamba")),
        ("qwen3_5", {"linear_value_head_dim": 16}),
        ("qwen3_next", {"linear_value_head_dim": 16, "shared_expert_intermediate_size": 32}),
        ("nemotron_h", {"mamba_head_dim": 16, "moe_shared_expert_intermediate_size": 32}),
    ],
)
def test_the_engine_computes_the_dequantized_model(
    architecture: str, changes: dict[str, Any], weights: str
) -> None:
    # given: the model that the numbers stand for, exactly
    def model() -> Any:
        return build(architecture, initializer_range=0.1, **changes).bfloat16()

    plain = model()
    plain.set_attn_implementation(IMPLEMENTATION)
    parts = find_parts(plain, find_layers(plain))
    assert parts is not None
    quantize_model(plain, parts, weights).restore()
    # when
    dequantized = InferenceEngine.from_model(plain, kv_cache_tokens=1024)
    quantized = InferenceEngine.from_model(model(), kv_cache_tokens=1024, weights=weights)
    # then
    assert quantized.decoder_description == f"compiled ({native.build_name()}), {weights} weights"
    # A delta rule's outputs are small before their norm: it doubles what rounding has changed, also
    # that to bfloat16.
    check_logits(quantized, dequantized, 0.08 if "linear_value_head_dim" in changes else 0.04)


@needs_decoder
@pytest.mark.parametrize("weights", FORMATS)
def test_a_request_s_tokens_do_not_depend_on_its_neighbours(weights: str) -> None:
    model = build("llama").bfloat16()
    engine = InferenceEngine.from_model(model, kv_cache_tokens=1024, weights=weights)
    asked = prompts(3, 20, 9, 61, 5, 7, 30, 11, 2)
    together = answers(engine, asked, 12, max_batch_size=9)
    assert together == [answers(engine, [prompt], 12)[0] for prompt in asked]


# Refusals


@needs_decoder
def test_a_decoder_that_differs_from_the_dequantized_model_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(model: Any, layers: Any, context: int, quantized: Any) -> Any:
        parts = find_parts(model, layers)
        assert parts is not None
        one, other = (layer.output for layer in parts.layers[:2])
        quantized[one], quantized[other] = quantized[other], quantized[one]
        return build_decoder(model, layers, context, quantized)

    monkeypatch.setattr("roseinfer.execution.runners.build_decoder", wrong)
    with pytest.raises(UnsupportedModel, match="its logits differ from the model's"):
        InferenceEngine.from_model(build("llama").bfloat16(), weights="int8")


@needs_decoder
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            build("opt").bfloat16(),
            "needs the compiled decoder, and it does not know this kind",
        ),
        (build("llama", intermediate_size=72).bfloat16(), "a multiple of 32: one .* has 72"),
    ],
)
def test_a_model_that_cannot_have_them_is_refused(model: Any, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        InferenceEngine.from_model(model, weights="int4")


@needs_decoder
@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e9])
def test_numbers_without_a_scale_are_refused(number: float) -> None:
    model = build("llama").bfloat16()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 5] = number
    with pytest.raises(UnsupportedModel, match="cannot hold this model: a weight is not finite"):
        InferenceEngine.from_model(model, weights="int8")


@pytest.mark.usefixtures("no_native")
def test_without_the_compiled_decoder_they_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="needs the compiled decoder, and "):
        InferenceEngine.from_model(build("llama").bfloat16(), weights="int8")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"weights": "int3"}, "'int3' is not one of int8, int4"),
        ({"dtype": "float32"}, "computes the rest in bfloat16"),
        ({"device": "meta"}, "is for device='cpu', not 'meta'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    options: dict[str, str], reason: str
) -> None:
    asked = {"device": "cpu", "weights": "int8", **options}
    with pytest.raises(ConfigurationError, match=reason):
        InferenceEngine(None, **asked)  # type: ignore[arg-type]


def test_another_format_is_another_model() -> None:
    """A takeover between the two would go on with a text that this model did not write."""
    own = {load(None, None, "cpu", "bfloat16", weights).fingerprint for weights in (None, *FORMATS)}
    assert len(own) == 3
