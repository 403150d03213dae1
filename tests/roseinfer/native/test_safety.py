"""What must be refused: a stale build, one that cannot run, a step that points outside."""

import ctypes
import logging
import os
from pathlib import Path

import pytest
import torch

from rose.errors import ConfigurationError
from roseinfer import InferenceEngine, SamplingParams, native
from roseinfer.gpu.options import GpuOptions
from roseinfer.native import library
from roseinfer.native.library import sample_rows
from roseinfer.sessions.session import Chunk, SamplingRequest
from tests.roseinfer.models import build, needs_decoder
from tests.roseinfer.native.builds import INSTEAD

pytestmark = needs_decoder


@pytest.fixture
def fresh_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """`library.load` as a new process would call it."""
    if INSTEAD is not None:
        pytest.skip("another library is tested")
    monkeypatch.setattr(library, "load", library.load.__wrapped__)


# A library that does not fit


def test_the_layouts_are_the_same() -> None:
    assert library.layout_difference(library.library()) is None


def test_a_library_with_another_layout_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    # given: Python code with a field that the library does not have
    class Norm(ctypes.Structure):
        _fields_ = (*library.Norm._fields_, ("epsilon", ctypes.c_float))

    shared = [Norm if struct is library.Norm else struct for struct in library._SHARED]
    monkeypatch.setattr(library, "_SHARED", shared)
    # when
    loaded = library.open_library(Path(library.library()._name))
    # then
    assert loaded.library is None
    assert "built from other sources (Norm: (0, 16) there, (0, 24) here)" in loaded.reason


@pytest.mark.usefixtures("fresh_load")
def test_a_file_that_is_no_library_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    broken = tmp_path / "_native.abi3.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(library, "_RELEASED", broken)
    # when
    with caplog.at_level(logging.INFO):
        engine = InferenceEngine.from_model(build("llama"), kv_cache_tokens=64)
    # then
    assert "transformers' own code" in engine.decoder_description
    assert "not the compiled one: it cannot be opened" in caplog.text


@pytest.mark.skipif(INSTEAD is not None, reason="another library is tested")
def test_the_shipped_library_has_no_test_hooks() -> None:
    assert not hasattr(library.library(), "rose_force")


# Which decoder serves


@pytest.mark.skipif(INSTEAD is not None, reason="another library is tested")
def test_pairs_of_bfloat16_are_no_first_choice_on_intels_processors() -> None:
    """Their cores have the instruction, and are faster without."""
    # given
    runs = library.builds(library.library())
    if "avx512_bf16" not in runs or "amx" in runs or os.environ.get("ROSEINFER_NATIVE") != "all":
        pytest.skip("this processor has no choice")
    intel = "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    # then
    assert native.build_name() == ("avx512_vnni" if intel else "avx512_bf16")


@pytest.mark.usefixtures("fresh_load")
def test_a_build_that_cannot_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROSEINFER_NATIVE", "avx1024")
    with pytest.raises(ConfigurationError, match=r"'avx1024' is not possible: this processor runs"):
        InferenceEngine.from_model(build("llama"), kv_cache_tokens=64)


@pytest.mark.usefixtures("fresh_load")
def test_it_can_be_turned_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ROSEINFER_NATIVE", "0")
    with caplog.at_level(logging.INFO):
        InferenceEngine.from_model(build("llama"), kv_cache_tokens=64)
    lines = [record.getMessage() for record in caplog.records if "decoder: " in record.getMessage()]
    assert lines == [
        "decoder: transformers' own code, sdpa attention; not the compiled one: "
        "ROSEINFER_NATIVE=0 turns the compiled decoder off"
    ]


@pytest.mark.parametrize("attention", [None, "sdpa"])
def test_naming_an_attention_leaves_it_on(
    attention: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        engine = InferenceEngine.from_model(
            build("llama"), kv_cache_tokens=64, gpu=GpuOptions(attention=attention)
        )
    assert engine.decoder_description == f"compiled ({native.build_name()})"
    assert f"decoder: compiled ({native.build_name()})" in caplog.text


def test_a_head_with_more_ids_than_the_embedding_is_left_to_transformers() -> None:
    model = build("llama", tie_word_embeddings=False)
    rows = model.lm_head.out_features
    model.lm_head = torch.nn.Linear(model.config.hidden_size, rows + 8, bias=False)
    engine = InferenceEngine.from_model(model, kv_cache_tokens=64)
    assert f"the head has {rows + 8} ids, the embedding {rows}" in engine.decoder_description


def test_a_context_shorter_than_the_load_probe() -> None:
    engine = InferenceEngine.from_model(build("llama"), kv_cache_tokens=64, max_context=4)
    assert engine.decoder_description.startswith("compiled")


# A step that points outside


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"tokens": [1, 10**9, 3]}, r"outside the embedding \(id 1000000000 of"),
        ({"tokens": [-1, 2, 3]}, r"outside the embedding \(id -1 of"),
        ({"tokens": [1] * 200, "computed": 197}, "a position is beyond the context"),
        ({"blocks": []}, "a block table is too short"),
        ({"blocks": [4096]}, "a block number is outside the KV cache"),
        ({"blocks": [-1]}, "a block number is outside the KV cache"),
    ],
)
def test_a_step_that_points_outside_is_refused(damage: dict[str, object], message: str) -> None:
    # given
    engine = InferenceEngine.from_model(build("llama"), kv_cache_tokens=64)
    session = engine.new_session([1, 2, 3])
    session.blocks = engine.cache.pool.allocate(1)
    for name, value in damage.items():
        setattr(session, name, value)
    # when, then
    with pytest.raises(ValueError, match=message):
        engine.forward([Chunk(session, 3)])


def test_logits_that_do_not_fit_their_requests_are_refused() -> None:
    requests = [SamplingRequest(SamplingParams(seed=1), 0)] * 2
    for other in (torch.zeros(1, 9), torch.zeros(1, 10).double(), torch.zeros(1, 20)[:, ::2]):
        with pytest.raises(ValueError, match="must be float32 on CPU, a line of one length"):
            sample_rows([(torch.zeros(1, 10), [0]), (other, [1])], requests)
    with pytest.raises(ValueError, match="for each of 2 requests"):
        sample_rows([(torch.zeros(1, 10), [0, 1])], requests)
    with pytest.raises(ValueError, match="no logits for request 1 of 2"):
        sample_rows([(torch.zeros(1, 10), [0])], requests)
