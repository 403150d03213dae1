"""A checkpoint's layer for further tokens: it is found, or the model does without and the log says
why."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer

from roseinfer.checkpoints import draft_layer
from roseinfer.checkpoints.loading import LoadedModel, load
from roseinfer.demo_model import MODEL_PATH
from tests.roseinfer.draft_heads import QWEN, save_with_head
from tests.roseinfer.models import build, byte_tokenizer

Tensors = dict[str, Tensor]


def change(folder: Path, how: Callable[[Tensors], Tensors]) -> None:
    path = folder / "model.safetensors"
    save_file(how(load_file(path)), path, metadata={"format": "pt"})


def load_from(folder: Path, *, own_drafts: bool = True) -> LoadedModel:
    return load(folder, None, "cpu", None, own_drafts=own_drafts)


@pytest.mark.parametrize("architecture", ["qwen3_5", "deepseek_v3"])
def test_it_is_loaded_if_it_is_asked_for(architecture: str, tmp_path: Path) -> None:
    save_with_head(tmp_path, architecture)

    plain, with_layer = load_from(tmp_path, own_drafts=False), load_from(tmp_path)

    assert plain.draft_layer is None
    layer = with_layer.draft_layer
    assert layer is not None
    assert len(layer.model.model.layers) == 1
    assert layer.model.lm_head is with_layer.model.lm_head
    assert plain.fingerprint == with_layer.fingerprint


def test_what_qwen_keeps_is_found_under_any_name_that_it_has(tmp_path: Path) -> None:
    # given a checkpoint that also sees, whose layer is stored with a prefix
    save_with_head(tmp_path, "qwen3_5")
    change(tmp_path, lambda tensors: {_prefixed(name): own for name, own in tensors.items()})
    # then
    assert load_from(tmp_path).draft_layer is not None


def _prefixed(name: str) -> str:
    return f"model.{name}" if name.startswith("mtp.") else name


def test_a_checkpoint_in_8_bits_has_it_too(tmp_path: Path) -> None:
    """Its matrices stand for others as those of the model do: FP8 with scales."""
    # given
    save_with_head(tmp_path, "deepseek_v3", hidden_size=128)
    before = load_from(tmp_path).draft_layer
    assert before is not None
    change(tmp_path, _in_fp8)
    config = tmp_path / "config.json"
    described = '"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},'
    config.write_text(config.read_text().replace("{", "{" + described, 1))
    # when
    layer = load_from(tmp_path).draft_layer
    # then
    assert layer is not None
    difference = layer.projection.weight.float() - before.projection.weight
    assert 0 < difference.norm() / before.projection.weight.norm() < 0.05


def _in_fp8(tensors: Tensors) -> Tensors:
    made = {}
    for name, tensor in tensors.items():
        if tensor.dim() < 2 or not name.endswith(("eh_proj.weight", "o_proj.weight")):
            made[name] = tensor
            continue
        blocks = [-(-size // 128) for size in tensor.shape]
        scale = float(tensor.abs().max()) / 448
        made[name] = (tensor / scale).to(torch.float8_e4m3fn)
        made[f"{name}_scale_inv"] = torch.full(blocks, scale)
    return made


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (lambda tensors: _without(tensors, "mtp.norm.weight"), "it has no norm"),
        (lambda tensors: _without(tensors, "mtp.layers.0.mlp.up_proj.weight"), "up_proj"),
        (lambda tensors: tensors | {"mtp.layers.0.other.weight": torch.ones(3)}, "other"),
        (
            lambda tensors: tensors | {"mtp.layers.0.mlp.up_proj.weight": torch.ones(3, 5)},
            "up_proj",
        ),
    ],
)
def test_one_that_is_not_whole_is_left_out(
    how: Callable[[Tensors], Tensors],
    reason: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # given
    save_with_head(tmp_path, "qwen3_5")
    change(tmp_path, how)
    # when
    with caplog.at_level(logging.WARNING):
        loaded = load_from(tmp_path)
    # then
    assert loaded.draft_layer is None
    (said,) = [text for text in caplog.messages if "drafts" in text]
    assert reason in said
    assert "\n" not in said


def test_one_for_which_there_is_no_memory_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    save_with_head(tmp_path, "qwen3_5")
    monkeypatch.setattr(draft_layer, "free_memory", lambda: 1000)
    # when
    loaded = load_from(tmp_path)
    # then
    assert loaded.draft_layer is None
    assert "of memory" in caplog.text


@pytest.mark.parametrize("architecture", QWEN)
def test_a_gguf_file_has_it_too(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gguf", reason="needs the extra gguf")
    from tests.support.gguf_files import write_gguf

    # given
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    save_with_head(tmp_path / "plain", architecture, vocab_size=len(tokenizer))
    plain = load_from(tmp_path / "plain")
    assert plain.draft_layer is not None
    path = tmp_path / "model.gguf"
    write_gguf(path, plain.model, tokenizer, draft_layer=plain.draft_layer)
    # when
    loaded = load(path, None, "cpu", "float32", own_drafts=True)
    # then
    assert loaded.model.config.num_hidden_layers == plain.model.config.num_hidden_layers
    assert loaded.draft_layer is not None
    for ours, theirs in zip(*map(_tensors_of, (loaded, plain)), strict=True):
        torch.testing.assert_close(ours, theirs)
    # and: memory is asked before its tensors are read
    monkeypatch.setattr(draft_layer, "free_memory", lambda: 1000)
    assert load(path, None, "cpu", "float32", own_drafts=True).draft_layer is None


def _tensors_of(loaded: LoadedModel) -> list[Tensor]:
    layer = loaded.draft_layer
    assert layer is not None
    modules = (layer.model, layer.projection, layer.embedding, layer.hidden)
    return [tensor for module in modules for tensor in module.state_dict().values()]


def _without(tensors: Tensors, name: str) -> Tensors:
    return {own: tensor for own, tensor in tensors.items() if own != name}


@pytest.mark.parametrize("architecture", ["qwen3_5", "gemma4", "mamba2", "gpt2"])
def test_a_model_without_one_has_none_and_says_nothing(
    architecture: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build(architecture).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)

    with caplog.at_level(logging.WARNING):
        loaded = load_from(tmp_path)

    assert loaded.draft_layer is None
    assert not [text for text in caplog.messages if "drafts" in text]
