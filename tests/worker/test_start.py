"""What a worker loads before it serves: how soon it is ready depends on it."""

import logging
import re
import subprocess
import sys

import pytest

from rose_worker import service
from rose_worker.engine import Engine
from rose_worker.null_engine import NullEngine
from rose_worker.settings import WorkerSettings
from roseinfer.demo_model import MODEL_PATH
from tests.support.bench import wait_until
from tests.support.echo import StartWorker

#: Loads the engine as `rose worker` does, then does what is asked for.
_LOAD = """
import sys
from rose_worker.main import loader
from rose_worker.settings import WorkerSettings
engine = loader(WorkerSettings(engine={engine!r}))()
"""


#: After it: what shows whether whoever shares the process sees torch as it is.
_LOOK = """
print(*sys.modules)
from transformers.utils.import_utils import create_import_structure_from_path as look
print(look.cache_info().misses == look.cache_info().currsize)
from transformers.utils import is_torch_distributed_available as there
import gc, torch
weight = torch.nn.init.normal_(torch.zeros(8))
print(there() == torch.distributed.is_available(), bool(weight.any()), gc.isenabled())
"""


def run(engine: str, code: str) -> list[str]:
    """What a fresh process prints that has loaded an engine."""
    program = _LOAD.format(engine=engine) + code
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_a_worker_says_what_it_loads_and_what_memory_it_takes(start_worker: StartWorker) -> None:
    # when
    worker = start_worker(engine="rose", device="cpu", model=str(MODEL_PATH), kv_cache_tokens=4096)
    # then
    lines = worker.log.splitlines()
    (loading,) = [n for n, line in enumerate(lines) if f" MB in {MODEL_PATH}" in line]
    (loaded,) = [n for n, line in enumerate(lines) if "the model is loaded: " in line]
    assert loading < loaded
    assert "loading demo_model, " in lines[loading]
    assert re.search(
        r"the model is loaded: [\d.]+ [MG]B of memory; its KV cache takes up to \d+ MB more and "
        r"holds 4096 tokens .*; prompt and output of a job have at most \d+$",
        lines[loaded],
    )


async def test_a_worker_that_loads_for_long_says_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    monkeypatch.setattr(service, "_PROGRESS_S", 0.01)
    caplog.set_level(logging.INFO)
    said = re.compile(r"still loading after \d+ s: [\d.]+ [MG]B in memory")

    def load() -> Engine:
        wait_until(lambda: sum(bool(said.search(line)) for line in caplog.messages) >= 2)
        return engine

    engine = NullEngine(WorkerSettings(engine="null"))
    # then
    assert await service._in_own_thread(load) is engine


def test_the_null_engine_loads_nothing_of_the_real_one() -> None:
    (loaded,) = run("null", "print(*sys.modules)")
    assert not {"torch", "numpy", "transformers", "tokenizers", "llguidance", "roseinfer"} & set(
        loaded.split()
    )


@pytest.fixture(scope="module")
def looked() -> list[str]:
    """What a process with the engine says at `_LOOK`."""
    return run("rose", _LOOK)


def test_the_engine_loads_neither_torchs_compiler_nor_its_sharded_tensors(
    looked: list[str],
) -> None:
    loaded = set(looked[0].split())
    assert {"torch", "transformers", "torch._dynamo"} <= loaded
    heavy = {"torch._dynamo.convert_frame", "torch.distributed.tensor", "torch.distributed.fsdp"}
    assert not heavy & loaded


def test_transformers_looks_into_no_folder_twice(looked: list[str]) -> None:
    assert looked[1] == "True"


@pytest.mark.parametrize(
    "use",
    [
        "import torch; torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1))",
        "import torch; torch._dynamo.disable; torch._dynamo.reset()",
    ],
)
def test_whoever_asks_for_torchs_compiler_gets_it(use: str) -> None:
    # when
    loaded = run("rose", f"{use}\nprint(*sys.modules)")
    # then
    assert "torch._dynamo.convert_frame" in loaded[-1].split()


def test_who_shares_the_process_sees_torch_as_it_is(looked: list[str]) -> None:
    assert looked[2] == "True True True"
