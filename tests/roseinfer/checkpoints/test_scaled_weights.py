"""Weights of 8 bits are what their scales make of them, or refused with a reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rose.errors import UnsupportedModel
from roseinfer.checkpoints.loading import load
from roseinfer.demo_model import MODEL_PATH
from tests.roseinfer.models import tiny_llama

Tensors = dict[str, Tensor]
MATRIX = "model.layers.0.mlp.down_proj.weight"
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}


def compressed(kind: str, strategy: str, **weights: Any) -> dict[str, Any]:
    own = {"num_bits": 8, "type": kind, "strategy": strategy, "symmetric": True, **weights}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if kind == "int" else "float-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": own}},
    }


def by_tensor(weight: Tensor) -> Tensor:
    return weight.abs().max() / 100


def by_channel(weight: Tensor) -> Tensor:
    return weight.abs().amax(1, keepdim=True) / 100


def by_block(weight: Tensor) -> Tensor:
    rows, columns = (-(-size // 48) for size in weight.shape)
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(1)) / 100 + 0.01


def spread(scales: Tensor, weight: Tensor) -> Tensor:
    """A scale for each weight."""
    if scales.dim() == 2 and scales.shape[1] > 1:
        wide = scales.repeat_interleave(48, 0).repeat_interleave(48, 1)
        return wide[: weight.shape[0], : weight.shape[1]]
    return scales.expand_as(weight)


CASES: dict[str, tuple[dict[str, Any], str, Callable[[Tensor], Tensor], torch.dtype]] = {
    "deepseek": (
        FP8 | {"weight_block_size": [48, 48]},
        "_scale_inv",
        by_block,
        torch.float8_e4m3fn,
    ),
    "fp8 with one scale": (FP8, "_scale", by_tensor, torch.float8_e4m3fn),
    "e5m2": (FP8 | {"fmt": "e5m2"}, "_scale_inv", by_channel, torch.float8_e5m2),
    "fbgemm": ({"quant_method": "fbgemm_fp8"}, "_scale", by_channel, torch.float8_e4m3fn),
    "modelopt": (MODELOPT, "_scale", by_tensor, torch.float8_e4m3fn),
    "compressed-tensors": (
        compressed("float", "channel"),
        "_scale",
        by_channel,
        torch.float8_e4m3fn,
    ),
    "compressed-tensors in blocks": (
        compressed("float", "block", block_structure=[48, 48]),
        "_scale",
        by_block,
        torch.float8_e4m3fn,
    ),
    "compressed-tensors of integers": (
        compressed("int", "channel"),
        "_scale",
        by_channel,
        torch.int8,
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_llama(vocab_size=2048).save_pretrained(tmp_path)
    return tmp_path


def change(folder: Path, edit: Callable[[Tensors], Tensors]) -> None:
    file = folder / "model.safetensors"
    save_file(edit(load_file(file)), file, {"format": "pt"})


def describe(folder: Path, config: Any) -> None:
    path = folder / "config.json"
    said = json.loads(path.read_text()) | {"quantization_config": config}
    path.write_text(json.dumps(said))


def quantize(folder: Path, case: str) -> Tensors:
    """What the matrices stand for afterwards."""
    config, suffix, scale, dtype = CASES[case]
    meant: Tensors = {}

    def edit(tensors: Tensors) -> Tensors:
        for name in [name for name in tensors if name.endswith("proj.weight")]:
            scales = scale(tensors[name])
            values = (tensors[name] / spread(scales, tensors[name])).clamp(-100, 100)
            values = (values.round() if dtype == torch.int8 else values).to(dtype)
            meant[name] = values.float() * spread(scales, values)
            tensors |= {name: values, name + suffix: scales}
            tensors[name.replace("weight", "input_scale")] = torch.tensor(0.5)
        return tensors

    change(folder, edit)
    describe(folder, config)
    return meant


def model_of(folder: Path, dtype: str = "float32") -> Any:
    return load(folder, str(MODEL_PATH), "cpu", dtype).model


@pytest.mark.parametrize("case", CASES)
def test_weights_are_multiplied_by_their_scales(folder: Path, case: str) -> None:
    # given
    meant = quantize(folder, case)
    assert len(meant) == 14
    # when
    exact, rounded = model_of(folder), model_of(folder, "bfloat16")
    # then
    for name, weight in meant.items():
        assert torch.equal(exact.get_parameter(name), weight), name
        assert torch.equal(rounded.get_parameter(name), weight.bfloat16()), name


def test_what_modelopt_writes_beside_the_configuration_is_read(folder: Path) -> None:
    # given
    meant = quantize(folder, "modelopt")
    describe(folder, None)
    said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(said))
    # then
    assert torch.equal(model_of(folder).get_parameter(MATRIX), meant[MATRIX])


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "stored as F8_E4M3, and no quantization_config says"),
        ({"quant_method": "fancy"}, "quant_method='fancy', which nobody reads"),
        ({"quant_method": "ascend"}, "quant_method='ascend', which nobody reads"),
        (MODELOPT | {"quant_algo": "NVFP4"}, "quant_algo='NVFP4', of which 'FP8'"),
        (MODELOPT | {"quant_algo": "W4A8_AWQ"}, "quant_algo='W4A8_AWQ'"),
        (compressed("float", "group"), "strategy='group'"),
        (compressed("float", "channel", symmetric=False), "symmetric=False"),
        (compressed("float", "channel") | {"transform_config": {"a": 1}}, "transform_config="),
        ({"quant_method": "gptq", "bits": 4}, "stored as float8_e4m3fn"),
    ],
)
def test_a_method_that_nobody_reads_is_refused(folder: Path, config: Any, said: str) -> None:
    quantize(folder, "fbgemm")
    describe(folder, config)
    with pytest.raises(UnsupportedModel, match=said):
        model_of(folder)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda t: t | {MATRIX + "_scale": torch.ones(7)}, r"down_proj.* its scales \[7\]"),
        (lambda t: t | {MATRIX + "_scale": torch.ones(3, 2)}, r"down_proj.* its scales \[3, 2\]"),
        (lambda t: {k: v for k, v in t.items() if k != MATRIX + "_scale"}, "without a scale"),
        (
            lambda t: t | {MATRIX + "_scale": torch.ones(64, 1).to(torch.uint8)},
            "is uint8, which is not read",
        ),
        (lambda t: t | {MATRIX + "_zero_point": torch.ones(64, 1)}, "nothing reads .*zero_point"),
        (lambda t: t | {MATRIX[:-6] + "pre_quant_scale": torch.ones(128)}, "pre_quant_scale"),
    ],
)
def test_scales_that_do_not_fit_are_refused(
    folder: Path, edit: Callable[[Tensors], Tensors], said: str
) -> None:
    quantize(folder, "fbgemm")
    change(folder, edit)
    with pytest.raises(UnsupportedModel, match=said):
        model_of(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.float8_e5m2])
@pytest.mark.parametrize("name", [MATRIX, "model.norm.weight", "lm_head.weight"])
def test_numbers_of_another_type_without_a_method_are_refused(
    folder: Path, dtype: torch.dtype, name: str
) -> None:
    change(folder, lambda tensors: tensors | {name: tensors[name].to(dtype)})
    with pytest.raises(UnsupportedModel, match=f"its tensor {name} is stored as"):
        model_of(folder)


@pytest.mark.parametrize(
    "name",
    [
        MATRIX + "_scale",
        MATRIX.replace("weight", "weight_scale_inv"),
        MATRIX.replace("weight", "bias"),
        MATRIX.replace("weight", "lora_A.weight"),
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.2.mlp.down_proj.weight",
        "score.weight",
    ],
)
def test_a_tensor_that_nothing_reads_is_refused(folder: Path, name: str) -> None:
    change(folder, lambda tensors: tensors | {name: torch.ones(64)})
    with pytest.raises(UnsupportedModel, match=f"nothing reads 1 tensors .* {name} among them"):
        model_of(folder)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "vision_tower.encoder.layers.0.weight",
        "multi_modal_projector.linear.weight",
        "mtp.layers.0.mlp.weight",
        "v_head.summary.weight",
    ],
)
def test_what_no_text_needs_is_left_out(folder: Path, name: str) -> None:
    change(folder, lambda tensors: tensors | {name: torch.ones(8)})
    assert model_of(folder).config.num_hidden_layers == 2


def test_a_bias_of_zeros_changes_nothing(folder: Path) -> None:
    bias = MATRIX.replace("weight", "bias")
    change(folder, lambda tensors: tensors | {bias: torch.zeros(64)})
    model_of(folder)
