"""What tells two models apart, at a cost that does not grow with them."""

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from roseinfer.checkpoints.fingerprint import fingerprint, fingerprint_of_files
from roseinfer.checkpoints.loading import load
from roseinfer.demo_model import MODEL_PATH
from tests.roseinfer import models


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    loaded: torch.nn.Module = load(None, None, "cpu", None).model
    return loaded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL_PATH, tmp_path / "elsewhere"))


def test_the_same_files_elsewhere_are_the_same_model(model: torch.nn.Module, folder: Path) -> None:
    loaded = load(folder, None, "cpu", None)
    assert loaded.fingerprint == fingerprint(str(MODEL_PATH), str(MODEL_PATH), model)
    assert len(loaded.fingerprint) == 16


def test_another_dtype_tokenizer_or_configuration_is_another_model(
    model: torch.nn.Module, folder: Path
) -> None:
    # given
    here = str(MODEL_PATH)
    prints = {fingerprint(here, here, model), load(None, None, "cpu", "bfloat16").fingerprint}
    # when
    for name in ("chat_template.jinja", "tokenizer.json", "config.json"):
        with (folder / name).open("a") as file:
            file.write(" ")
        prints.add(fingerprint(str(folder), str(folder), model))
    # then
    assert len(prints) == 5


def test_every_tensor_counts(model: torch.nn.Module) -> None:
    # given
    here = str(MODEL_PATH)
    prints = {fingerprint(here, here, model)}
    # when: as training moves it, each by a little
    for weights in model.parameters():
        with torch.no_grad():
            weights.mul_(1.001)
        prints.add(fingerprint(here, here, model))
    # then
    assert len(prints) == 1 + len(list(model.parameters()))


# Tied weights, names with a prefix that files lack, and a bias beside each weight.
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen2", "gemma3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_files_alone_tell_the_same(tmp_path: Path, architecture: str, dtype: str) -> None:
    # given: several files, as large models have
    models.build(architecture).save_pretrained(tmp_path, max_shard_size="100KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    # when
    loaded = load(tmp_path, str(MODEL_PATH), "cpu", dtype)
    of_files = fingerprint_of_files(str(tmp_path), str(MODEL_PATH), getattr(torch, dtype))
    # then
    assert of_files == loaded.fingerprint


def test_files_that_transformers_would_name_otherwise_still_tell_models_apart(
    folder: Path,
) -> None:
    # given: a model that transformers does not know
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "of_tomorrow"}))
    before = fingerprint_of_files(str(folder), str(MODEL_PATH), torch.float32)
    # when
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    name = min(weights)
    weights[name] = weights[name] * 1.01
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    # then
    assert before != fingerprint_of_files(str(folder), str(MODEL_PATH), torch.float32)


TEMPLATE = "{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vocab.json", "{}"),
        ("merges.txt", "a b"),
        ("tokenizer.model", "x"),
        ("added_tokens.json", "{}"),
        ("special_tokens_map.json", "{}"),
        ("chat_template.jinja", TEMPLATE),
        ("additional_chat_templates/tool_use.jinja", TEMPLATE),
        ("additional_chat_templates/rag.jinja", TEMPLATE),
    ],
)
def test_every_file_that_a_tokenizer_reads_counts(
    model: torch.nn.Module, folder: Path, name: str, content: str
) -> None:
    # given
    prints = {fingerprint(str(folder), str(folder), model)}
    # when: it appears, changes, and the rest of the file changes place
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    for text in (content, content + " ", " " + content):
        path.write_text(text)
        prints.add(fingerprint(str(folder), str(folder), model))
    # then
    assert len(prints) == 4


@pytest.mark.parametrize("row", [0, 11, 511])
def test_one_row_of_the_embedding_counts(folder: Path, row: int) -> None:
    # given
    before = load(folder, None, "cpu", None).fingerprint
    before_of_files = fingerprint_of_files(str(folder), str(folder), torch.float32)
    path = folder / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    # when
    weights["model.embed_tokens.weight"][row] += 1
    safetensors.torch.save_file(weights, path, metadata={"format": "pt"})
    # then
    after = load(folder, None, "cpu", None).fingerprint
    assert after != before == before_of_files
    assert after == fingerprint_of_files(str(folder), str(folder), torch.float32)


def test_rows_that_change_places_count(model: torch.nn.Module) -> None:
    # given
    here = str(MODEL_PATH)
    before = fingerprint(here, here, model)
    # when
    for weights in model.parameters():
        if weights.dim() == 2:
            with torch.no_grad():
                weights[[3, 4]] = weights[[4, 3]]
            # then
            assert fingerprint(here, here, model) != before
            with torch.no_grad():
                weights[[3, 4]] = weights[[4, 3]]
    assert fingerprint(here, here, model) == before
