"""What a worker loads before it serves: how soon it is ready depends on it."""

import subprocess
import sys

import pytest

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
