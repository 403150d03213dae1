"""Of a checkpoint that also sees the language model is served, if that is a family of its own."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlavaConfig, Mistral3Config, PixtralVisionConfig

from rose.errors import UnsupportedModel
from roseinfer import InferenceEngine
from roseinfer.checkpoints.loading import load
from roseinfer.native.decoder import NativeDecoder
from tests.roseinfer.models import (
    answers,
    build,
    byte_tokenizer,
    needs_decoder,
    prompts,
    reference,
)

Tensors = dict[str, Tensor]

#: How earlier versions of transformers stored them, and how this one does.
_OLDER = {r"^lm_head\.": "language_model.lm_head.", r"^model\.": "language_model.model."}
_NEWER = {r"^model\.": "model.language_model."}


def save_that_sees(folder: Path, text: Any, names: dict[str, str], config_type: Any) -> None:
    """The language model `text` in a checkpoint with a tower for images."""
    text.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)

    def edit(tensors: Tensors) -> Tensors:
        renamed = {"vision_tower.patch_conv.weight": torch.randn(8, 3, 2, 2)}
        renamed["multi_modal_projector.linear_1.weight"] = torch.randn(8, 8)
        for name, tensor in tensors.items():
            for pattern, other in names.items():
                if re.match(pattern, name):
                    name = re.sub(pattern, other, name)
                    break
            renamed[name] = tensor
        return renamed

    change(folder, edit)
    vision = PixtralVisionConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    config_type(text_config=text.config, vision_config=vision).save_pretrained(folder)


def change(folder: Path, edit: Callable[[Tensors], Tensors]) -> None:
    file = folder / "model.safetensors"
    save_file(edit(load_file(file)), file, {"format": "pt"})


@needs_decoder
@pytest.mark.parametrize("names", [_OLDER, _NEWER], ids=["older names", "newer names"])
@pytest.mark.parametrize(
    ("architecture", "config_type"),
    [
        ("ministral3", Mistral3Config),
        ("mistral4", Mistral3Config),
        ("mistral", Mistral3Config),
        ("qwen3", LlavaConfig),
    ],
)
def test_its_tokens_are_those_of_the_language_model(
    architecture: str, config_type: Any, names: dict[str, str], tmp_path: Path
) -> None:
    # given
    text = build(architecture, initializer_range=0.3)
    save_that_sees(tmp_path, text, names, config_type)
    asked = prompts(3, 20, 41)
    # when
    engine = InferenceEngine(tmp_path, dtype="float32", kv_cache_tokens=1024)
    # then: in the compiled decoder
    assert isinstance(engine._runner, NativeDecoder)
    assert answers(engine, asked, 24) == [reference(text, prompt, 24) for prompt in asked]


@pytest.mark.parametrize("is_tied", [True, False])
def test_its_head_is_its_embedding_if_no_other_is_stored(is_tied: bool, tmp_path: Path) -> None:
    # given: only the whole configuration says so, of either
    text = build("ministral3", tie_word_embeddings=is_tied)
    text.config.tie_word_embeddings = False
    save_that_sees(tmp_path, text, _OLDER, Mistral3Config)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"]
    stored = load_file(tmp_path / "model.safetensors")
    assert ("language_model.lm_head.weight" in stored) == (not is_tied)
    # when
    model = load(tmp_path, None, "cpu", "float32").model
    # then
    assert torch.equal(model.lm_head.weight, text.lm_head.weight)


def test_numbers_with_scales_are_read(tmp_path: Path) -> None:
    # given a model whose matrices are float8 with one scale each, as its whole configuration says
    text = build("ministral3")
    save_that_sees(tmp_path, text, _OLDER, Mistral3Config)
    meant: Tensors = {}

    def edit(tensors: Tensors) -> Tensors:
        for name in [name for name in tensors if name.endswith("proj.weight")]:
            values = (tensors[name] / 0.01).clamp(-100, 100).to(torch.float8_e4m3fn)
            meant[name.removeprefix("language_model.")] = values.float() * 0.01
            tensors |= {name: values, f"{name}_scale_inv": torch.tensor(0.01)}
            tensors[name.replace("weight", "activation_scale")] = torch.tensor(0.5)
        return tensors

    change(tmp_path, edit)
    path = tmp_path / "config.json"
    described = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    config = json.loads(path.read_text()) | {"quantization_config": described}
    path.write_text(json.dumps(config))
    # when
    model = load(tmp_path, None, "cpu", "float32").model
    # then
    assert len(meant) == 7 * text.config.num_hidden_layers
    for name, weight in meant.items():
        assert torch.equal(model.get_parameter(name), weight), name


def test_one_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    save_that_sees(tmp_path, build("ministral3"), _OLDER, Mistral3Config)
    lost = "language_model.model.layers.1.mlp.up_proj.weight"
    change(tmp_path, lambda tensors: {n: t for n, t in tensors.items() if n != lost})
    with pytest.raises(UnsupportedModel, match=r"missing, model\.layers\.1\.mlp\.up_proj"):
        load(tmp_path, None, "cpu", None)
