"""One vLLM in this process for all tests that need one: it takes long to start."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rose_worker.settings import WorkerSettings
from tests.support.engines import set_variables, write_adapter


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: write_adapter(folder / name, seed) for seed, name in enumerate(("gruff", "kind"))}


@pytest.fixture(scope="session")
def vllm(adapters: Mapping[str, Path]) -> Iterator[Any]:
    """With the built-in model, adapters, and a KV cache too small for eight jobs at once."""
    set_variables()
    from rose_worker.vllm import loader

    settings = WorkerSettings(
        engine="vllm",
        max_batch_size=8,
        max_context=256,
        cuda_graphs=False,
        adapters=",".join(f"{name}={folder}" for name, folder in adapters.items()),
        vllm_args="--block-size 32 --num-gpu-blocks-override 24",
    )
    with closing(loader(settings)()) as engine:
        yield engine


@pytest.fixture(scope="session")
def rose() -> Any:
    from rose_worker.rose_engine import RoseEngine

    return RoseEngine(WorkerSettings(max_batch_size=8, max_context=256, device="cpu"))
