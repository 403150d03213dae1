import importlib.util
from collections.abc import Iterator

import pytest
import torch

from roseinfer import InferenceEngine
from roseinfer.native import library
from tests.roseinfer.models import WAYS, byte_tokenizer, check_left_in_order, drawing, tiny_llama
from tests.roseinfer.native import builds

if importlib.util.find_spec("triton"):
    from tests.roseinfer.interpreter import lighten

    lighten()
if builds.INSTEAD:
    _loaded = builds.with_hooks()
    library.load = lambda: _loaded  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny matrices: threads only wait for each other, above all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def no_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an installation without a compiler: transformers' code runs every family."""
    monkeypatch.setattr(library, "load", lambda: library.Loaded(None, "a test"))


@pytest.fixture(params=WAYS)
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    with drawing(request.param):
        yield


@pytest.fixture(scope="session")
def shared_engine() -> InferenceEngine:
    return InferenceEngine.from_model(tiny_llama(), byte_tokenizer(), kv_cache_tokens=4096)


@pytest.fixture
def engine(shared_engine: InferenceEngine) -> Iterator[InferenceEngine]:
    """A tiny llama with a byte-level tokenizer; every scenario must leave its cache in order."""
    yield shared_engine
    check_left_in_order(shared_engine)
