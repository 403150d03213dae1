"""What tells two models apart, at a cost that does not grow with them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from roseinfer.demo_model import MODEL_PATH
from roseinfer.fingerprint import fingerprint
from roseinfer.loading import load


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
