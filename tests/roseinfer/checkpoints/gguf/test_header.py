"""A GGUF file that cannot be served is refused at once, with one line that says why."""

import random
import re
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf", reason="needs the extra gguf")

from gguf import GGMLQuantizationType as Type
from gguf import GGUFEndian, GGUFWriter

from rose.errors import ConfigurationError, ModelNotFound, RoseError, UnsupportedModel
from roseinfer.checkpoints.gguf import header
from roseinfer.checkpoints.gguf.header import read_header
from roseinfer.checkpoints.sources import check
from tests.roseinfer.models import byte_tokenizer, tiny_llama
from tests.support.gguf_files import write_gguf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return write_gguf(path, tiny_llama(), byte_tokenizer(), Type.Q8_0)


def written(
    path: Path,
    pairs: dict[str, str | int],
    architecture: str = "llama",
    endianess: GGUFEndian = GGUFEndian.LITTLE,
) -> Path:
    """A file without tensors."""
    writer = GGUFWriter(path, architecture, endianess=endianess)
    for name, value in pairs.items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        add(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def reason(path: Path, error: type[RoseError] = UnsupportedModel) -> str:
    with pytest.raises(error) as caught:
        check(str(path))
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_the_header_says_what_the_model_is(whole: Path) -> None:
    # when
    found = read_header(whole)
    # then
    model = tiny_llama()
    assert found.architecture == "llama"
    assert found.value("block_count") == 2
    assert found.counts["tokenizer.ggml.tokens"] == model.config.vocab_size
    assert sum(found.elements.values()) == sum(p.numel() for p in model.parameters())
    assert 0 < found.data_start < whole.stat().st_size


def test_a_file_is_checked_without_torch(whole: Path) -> None:
    program = (
        "import sys; from roseinfer.checkpoints.sources import check; check(sys.argv[1]);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(whole)], check=True)


@pytest.mark.parametrize("lost", [40, 5000])  # there are up to 31 zeros at the end
def test_a_download_that_was_cut_is_refused(whole: Path, tmp_path: Path, lost: int) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[:-lost])
    assert re.search(r"ends [\d,]+ bytes too early", reason(cut))


def test_a_header_that_was_cut_is_refused_wherever_it_ends(whole: Path, tmp_path: Path) -> None:
    content, cut = whole.read_bytes(), tmp_path / "cut.gguf"
    end = read_header(whole).data_start
    for length in [4, 5, 23, 24, 25, *range(30, end, end // 60)]:
        cut.write_bytes(content[:length])
        assert "damaged" in reason(cut)


def test_a_damaged_header_is_refused_or_harmless(whole: Path, tmp_path: Path) -> None:
    # given
    content, damaged = whole.read_bytes(), tmp_path / "damaged.gguf"
    end, generator = read_header(whole).data_start, random.Random(7)
    outcomes = set()
    for _ in range(300):
        # when: lengths, types and names become something else
        changed = bytearray(content)
        at = generator.randrange(4, end - 8)
        changed[at : at + 8] = struct.pack("<Q", generator.choice([0, 1, 2**31, 2**63, 2**64 - 1]))
        damaged.write_bytes(changed)
        # then
        try:
            read_header(damaged)
            outcomes.add("read")
        except UnsupportedModel:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ({"pairs": {"general.type": "adapter"}}, "no whole model"),
        ({"pairs": {"split.count": 3}}, "one of 3 parts"),
        ({"pairs": {"llama.block_count": 4_000_000_000}}, "block_count is 4000000000"),
        ({"pairs": {}}, "block_count is None"),
        ({"pairs": {}, "architecture": "clip"}, "'clip'"),
        ({"pairs": {}, "architecture": "clip"}, "llama, "),
        ({"pairs": {}, "architecture": "gemma3n"}, "use the model's folder of safetensors"),
        ({"pairs": {}, "endianess": GGUFEndian.BIG}, "big-endian"),
    ],
)
def test_other_files_of_the_format_are_refused(
    tmp_path: Path, file: dict[str, Any], says: str
) -> None:
    assert says in reason(written(tmp_path / "other.gguf", **file))


def test_what_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    pickled = tmp_path / "pytorch_model.bin"
    pickled.write_bytes(b"PK\x03\x04")
    empty = tmp_path / "empty.gguf"
    empty.touch()
    for path in (pickled, empty):
        assert "is no GGUF file" in reason(path, ModelNotFound)
    assert "no file" in reason(tmp_path / "absent.gguf", ModelNotFound)


def test_without_its_packages_the_extra_is_named(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(header, "find_spec", lambda name: find_spec(name.replace("gguf", "absent")))
    with pytest.raises(ConfigurationError, match=r"need gguf: pip install .*\[gguf\]"):
        check(str(whole))
