"""OpenMP: one runtime in the process, any order of items and number of threads, a short spin."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from roseinfer import InferenceEngine
from tests.roseinfer.models import answers, build, needs_decoder, prompts

pytestmark = needs_decoder

# Several sequences, long and short, in one step: greedy ids, as text.
GENERATE = """
import torch
torch.set_num_threads({threads})
from roseinfer import InferenceEngine, native
from tests.roseinfer.models import answers, build, prompts
assert native.available()
engine = InferenceEngine.from_model(build("llama"), kv_cache_tokens=1024)
assert engine.decoder_description.startswith("compiled")
print(answers(engine, prompts(3, 20, 9, 61), 8, max_batch_size=4))
"""


def run(code: str, **environment: str) -> str:
    """What a fresh process prints: OpenMP reads its settings once."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def usual() -> str:
    engine = InferenceEngine.from_model(build("llama"), kv_cache_tokens=1024)
    return str(answers(engine, prompts(3, 20, 9, 61), 8, max_batch_size=4))


@pytest.mark.skipif(sys.platform != "linux", reason="preloading is Linux's")
def test_items_may_come_in_any_order(tmp_path: Path, usual: str) -> None:
    # given: a runtime that begins with the last item
    descending = tmp_path / "descending.so"
    source = Path(__file__).with_name("descending.c")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", descending], check=True)
    # when, then
    assert run(GENERATE.format(threads=1), LD_PRELOAD=str(descending)) == usual


def test_openmp_may_count_its_threads_as_it_likes() -> None:
    # given: more threads by OpenMP's default than by torch's, and weights for one thread
    code = """
import torch
torch.set_num_threads(1)
from roseinfer.native import library as c
rows, ids = torch.randn(64, 1000), 1000
weights = torch.full((4, ids), -7.0)
fields = [(row.data_ptr(), 0, seed, 0, 1.0, 1.0, 0.0) for seed, row in enumerate(rows)]
requests, drawn = (c.SampleRequest * 64)(*fields), torch.full((64,), -1)
c.library().rose_sample(requests, 64, ids, weights.data_ptr(), drawn.data_ptr(), 1)
print((weights[1:] == -7.0).all().item(), ((drawn >= 0) & (drawn < ids)).all().item())
"""
    assert run(code, OMP_NUM_THREADS="4") == "True True"


def test_a_step_takes_as_many_threads_as_torch_says(usual: str) -> None:
    assert run(GENERATE.format(threads=3), OMP_NUM_THREADS="1") == usual


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_the_library_brings_no_openmp_of_its_own() -> None:
    code = """
import torch
from roseinfer import _openmp, native
before = _openmp.mapped_runtimes()
assert native.available()
print(len(before), _openmp.mapped_runtimes() == before)
"""
    assert run(code) == "1 True"


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_threads_spin_briefly_unless_told_otherwise(
    given: dict[str, str], spins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    code = "import roseinfer._openmp, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    assert run(code, **given) == spins
