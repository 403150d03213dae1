"""Pre-quantized checkpoints: numbers are kept or dequantized, or the reason is said."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from rose.errors import ConfigurationError, UnsupportedModel
from roseinfer import InferenceEngine, native
from roseinfer.checkpoints.loading import load
from roseinfer.demo_model import MODEL_PATH
from roseinfer.model.linears import place_of
from tests.roseinfer.models import build, check_logits, needs_decoder, tiny_llama
from tests.support import prequantized_checkpoints as writing

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}

MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}


def compressed(bits: int, group: int, symmetric: bool = True, **changes: Any) -> dict[str, Any]:
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": "group",
        "group_size": group,
        "actorder": None,
    }
    scheme = {"targets": ["Linear"], "weights": weights | changes, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": scheme},
        "ignore": ["lm_head"],
    }


CASES = {
    "gptq": GPTQ,
    "gptq, other zeros": GPTQ | {"sym": False, "group_size": 64},
    "gptq, version 2": GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"},
    "gptq, 8 bits": GPTQ | {"bits": 8, "sym": False},
    "awq": AWQ,
    "compressed-tensors": compressed(4, 32),
    "compressed-tensors, other zeros": compressed(4, 128, symmetric=False),
    "compressed-tensors, 8 bits": compressed(8, 64, symmetric=False),
}


def checkpoint(folder: Path, config: dict[str, Any]) -> tuple[Path, dict[str, Tensor]]:
    """A model of random numbers, and what they stand for by the names of its parameters."""
    model = tiny_llama(vocab_size=2048, hidden_size=128, intermediate_size=256)
    method = config["quant_method"]
    weights = config
    if method == "compressed-tensors":
        weights = config["config_groups"]["group_0"]["weights"]
    bits = weights.get("bits") or weights["num_bits"]
    symmetric = bool(weights.get("sym", weights.get("symmetric", False)))
    tensors, meant = {}, {}
    for seed, (name, module) in enumerate(model.named_modules()):
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        outputs, inputs = module.weight.shape
        numbers = writing.draw(
            outputs, inputs, bits, weights["group_size"], symmetric=symmetric, seed=seed
        )
        meant[f"{name}.weight"] = numbers.weight()
        if method == "gptq":
            version = 2 if weights.get("checkpoint_format") == "gptq_v2" else 1
            tensors[name] = writing.gptq(numbers, bits, version=version)
        elif method == "awq":
            tensors[name] = writing.awq(numbers)
        else:
            tensors[name] = writing.compressed(numbers, bits, symmetric=symmetric)
    assert len(tensors) == 7 * model.config.num_hidden_layers
    return writing.write(folder / "model", model, config, tensors), meant


def loaded(folder: Path, **options: Any) -> Any:
    return load(folder, str(MODEL_PATH), "cpu", options.get("dtype"), options.get("weights"))


def taken_weights(kept: Any) -> dict[str, Tensor]:
    """What was kept as it is in the files stands for, by the parameters' names, in float32."""
    names = {module: name for name, module in kept.model.named_modules()}
    places = {linear: place_of(linear) for linear in kept.taken}
    return {
        f"{names[module]}.{name}": kept.taken[linear].dequantize(torch.float32)
        for linear, (module, name) in places.items()
    }


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_every_number_is_that_of_the_files(tmp_path: Path, config: dict[str, Any]) -> None:
    # given
    folder, meant = checkpoint(tmp_path, config)
    # when
    plain, kept = loaded(folder), loaded(folder, weights="file")
    # then: exactly so in float32, and kept without rounding
    parameters = dict(plain.model.named_parameters())
    stored = taken_weights(kept)
    assert stored.keys() == meant.keys()
    for name, weight in meant.items():
        assert torch.equal(parameters[name], weight), name
        assert torch.equal(stored[name], weight), name
    assert kept.fingerprint != plain.fingerprint


@needs_decoder
@pytest.mark.parametrize("case", ["gptq", "awq", "compressed-tensors, 8 bits"])
def test_the_engine_computes_the_dequantized_model(tmp_path: Path, case: str) -> None:
    # given
    folder, _ = checkpoint(tmp_path, CASES[case])
    options = {"device": "cpu", "kv_cache_tokens": 1024}
    # when
    plain = InferenceEngine(folder, str(MODEL_PATH), dtype="bfloat16", **options)  # type: ignore[arg-type]
    kept = InferenceEngine(folder, str(MODEL_PATH), weights="file", **options)  # type: ignore[arg-type]
    # then
    assert kept.decoder_description == f"compiled ({native.build_name()}), file weights"
    check_logits(kept, plain)


@needs_decoder
def test_experts_that_are_stored_one_by_one_are_kept_together(tmp_path: Path) -> None:
    # given: as checkpoints of mixtures have them
    mixture = {"hidden_size": 128, "moe_intermediate_size": 64, "vocab_size": 2048}
    model = build("qwen3_moe", **mixture, initializer_range=0.05)
    experts = model.config.num_local_experts
    tensors, meant = {}, {}
    for layer in range(model.config.num_hidden_layers):
        name = f"model.layers.{layer}.mlp.experts"
        for expert in range(experts):
            for matrix, shape in {"gate": (64, 128), "up": (64, 128), "down": (128, 64)}.items():
                seed = len(tensors)
                numbers = writing.draw(*shape, 4, 32, symmetric=False, seed=seed)
                tensors[f"{name}.{expert}.{matrix}_proj"] = writing.gptq(numbers, 4)
                meant.setdefault(
                    f"{name}.{'down' if matrix == 'down' else 'gate_up'}_proj", []
                ).append(numbers.weight())
        del model.model.layers[layer].mlp.experts.gate_up_proj
        del model.model.layers[layer].mlp.experts.down_proj
    folder = writing.write(tmp_path / "model", model, GPTQ | {"sym": False}, tensors)
    # when
    kept = loaded(folder, weights="file")
    # then: as transformers joins them
    stored = taken_weights(kept)
    kept.taken.restore()
    parameters = dict(kept.model.named_parameters())
    assert stored.keys() == meant.keys()
    for name, weights in meant.items():
        assert torch.equal(stored[name], torch.cat(weights)), name
        plain = parameters[name].float().flatten(0, 1)
        assert torch.equal(plain, torch.cat(weights).bfloat16().float()), name
    engine = InferenceEngine(
        folder, str(MODEL_PATH), device="cpu", kv_cache_tokens=512, weights="file"
    )
    assert engine.decoder_description == f"compiled ({native.build_name()}), file weights"


def experts_in_mxfp4(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """A model of random codes and scales, and what transformers makes of these."""
    model = build("gpt_oss", vocab_size=2048, initializer_range=0.05)
    state = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    generator, meant = torch.Generator().manual_seed(2), {}
    for name in [name for name in state if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = state.pop(name).shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.randint(256, (*shape, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(118, 124, shape, dtype=torch.uint8, generator=generator)
        state |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        meant[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    folder.mkdir()
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    model.config.save_pretrained(folder)
    writing.describe(folder, MXFP4)
    return folder, meant


def test_every_code_of_every_expert_is_that_of_the_files(tmp_path: Path) -> None:
    # given
    folder, meant = experts_in_mxfp4(tmp_path / "model")
    # when
    plain, kept = loaded(folder), loaded(folder, weights="file")
    # then
    stored = taken_weights(kept)
    kept.taken.restore()
    assert stored.keys() == meant.keys()
    for model in (plain.model, kept.model):
        parameters = dict(model.named_parameters())
        for name, weight in meant.items():
            assert torch.equal(parameters[name].float(), weight), name


@needs_decoder
@pytest.mark.parametrize("weights", [None, "file", "int8", "int4"])
def test_experts_in_mxfp4_are_computed(tmp_path: Path, weights: str | None) -> None:
    folder, _ = experts_in_mxfp4(tmp_path / "model")
    # when: the load probe compares with the model of what the codes stand for
    engine = InferenceEngine(
        folder, str(MODEL_PATH), device="cpu", kv_cache_tokens=512, weights=weights
    )
    # then
    kind = f", {weights} weights" if weights else ""
    assert engine.decoder_description == f"compiled ({native.build_name()}){kind}"


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("blocks", lambda tensor: tensor[..., :8].contiguous(), "its blocks are torch.uint8"),
        ("scales", lambda tensor: tensor + 60, "beyond the range of float16"),
    ],
)
def test_experts_that_are_not_as_described_are_refused(
    tmp_path: Path, part: str, change: Any, said: str
) -> None:
    # given
    folder, _ = experts_in_mxfp4(tmp_path / "model")
    tensors = load_file(file := folder / "model.safetensors")
    name = f"model.layers.1.mlp.experts.down_proj_{part}"
    save_file(tensors | {name: change(tensors[name])}, file, {"format": "pt"})
    # then
    with pytest.raises(UnsupportedModel, match=f"'model.layers.1.mlp.experts.down_proj' .*{said}"):
        loaded(folder)


def test_when_a_text_ends_is_read_too(tmp_path: Path) -> None:
    folder, _ = checkpoint(tmp_path, GPTQ)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert loaded(folder).model.generation_config.eos_token_id == [7, 9]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (GPTQ | {"desc_act": True}, "desc_act=True, of which False"),
        (GPTQ | {"bits": 3}, "bits=3, of which 4, 8 can be read"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format='marlin'"),
        (GPTQ | {"group_size": 16}, "group_size=16, of which -1 and multiples of 32"),
        (GPTQ | {"dynamic": {"-:.*": {}}}, "dynamic="),
        (AWQ | {"version": "gemv"}, "version='gemv', of which 'gemm'"),
        (compressed(4, 32) | {"format": "nvfp4-pack-quantized"}, "format='nvfp4-pack-quantized'"),
        (compressed(4, 32, actorder="group"), "actorder='group'"),
        (compressed(8, 32, type="float"), "type='float', of which 'int'"),
        (compressed(4, 32) | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme="),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    # given: a checkpoint that says it is something else than we know
    folder, _ = checkpoint(tmp_path, GPTQ)
    writing.describe(folder, config)
    # then
    with pytest.raises(UnsupportedModel, match=f"quantization_config has {said}.*plain checkpoint"):
        loaded(folder)


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("g_idx", lambda tensor: tensor.flip(0), "ordered by activation"),
        ("scales", lambda tensor: tensor[:-1].contiguous(), "have .* scales and"),
        ("scales", lambda tensor: tensor.float() * 1e9, "beyond the range of float16"),
        ("qweight", lambda tensor: tensor.float(), "packed into torch.float32"),
    ],
)
def test_a_matrix_that_is_not_as_described_is_refused(
    tmp_path: Path, part: str, change: Any, said: str
) -> None:
    # given
    folder, _ = checkpoint(tmp_path, GPTQ)
    tensors = load_file(file := folder / "model.safetensors")
    name = f"model.layers.1.mlp.up_proj.{part}"
    save_file(tensors | {name: change(tensors[name])}, file, {"format": "pt"})
    # then
    with pytest.raises(UnsupportedModel, match=f"'model.layers.1.mlp.up_proj' .*{said}"):
        loaded(folder)


def test_other_methods_are_left_to_transformers(tmp_path: Path) -> None:
    """Of this one it says what is missing."""
    folder, _ = checkpoint(tmp_path, GPTQ)
    writing.describe(folder, {"quant_method": "hqq"})
    with pytest.raises(UnsupportedModel, match="model type 'llama' cannot be loaded"):
        loaded(folder)


def test_a_plain_checkpoint_has_nothing_to_keep() -> None:
    with pytest.raises(
        ConfigurationError, match=r"weights='file' .* none of these: leave weights out"
    ):
        load(None, None, "cpu", None, "file")
