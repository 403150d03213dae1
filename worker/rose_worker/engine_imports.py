"""Imports the engine and loads its model without what only compiling and sharding models need.

transformers' modules for models import `torch._dynamo` for a few decorators, and torch's sharded
tensors wherever torch has them: half of the time in which a worker starts. This process neither
compiles nor shards models. So a placeholder replaces `torch._dynamo` and loads it when anything
else of it is used, and transformers sees a torch without `torch.distributed`. transformers also
searches for its models once, not twice.
"""

import functools
import gc
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from roseinfer.patching import patched

_DYNAMO = "torch._dynamo"

#: What transformers' masks need of it, and what that loads.
_NEEDED = "torch._dynamo._trace_wrapped_higher_order_op"

#: Decorators that say how a function is to be compiled, and change nothing where none is.
_MARKS = ("allow_in_graph", "assume_constant_result", "disable")


@contextmanager
def lean() -> Iterator[None]:
    """While it lasts, the engine may be imported and its model loaded."""
    defer_dynamo()
    with _scanned_once():
        import transformers  # noqa: F401
    with _undistributed():
        yield


@contextmanager
def uncollected() -> Iterator[None]:
    """For imports: they create a million objects and hardly any garbage. These live as long as
    the process, so they are frozen for the collector: scanning them takes tenths of a second, in
    which no thread runs."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
    gc.freeze()


def defer_dynamo() -> None:
    """Put a placeholder for `torch._dynamo`, unless it is loaded."""
    import torch

    spec = None if _DYNAMO in sys.modules else importlib.util.find_spec(_DYNAMO)
    if spec is not None:
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _Deferred
        module.__dict__.update(dict.fromkeys(_MARKS, _unmarked))
        sys.modules[_DYNAMO] = torch._dynamo = module
        with suppress(ModuleNotFoundError):
            importlib.import_module(_NEEDED)
        # From here on the import of a submodule asks for the path, and so for the package.
        del module.__path__


class _Deferred(ModuleType):
    """A package that is loaded when a missing attribute is used."""

    _lock = threading.RLock()  # what it imports may ask for it again

    def __getattr__(self, name: str) -> Any:
        with _Deferred._lock:
            # `inspect` and others look for names with underscores in all modules.
            asked = name == "__path__" or not name.startswith("__")
            if asked and "__path__" not in self.__dict__:
                self._load()
            if name in self.__dict__:
                return self.__dict__[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def _load(self) -> None:
        spec = self.__spec__
        for mark in _MARKS:
            del self.__dict__[mark]
        if spec is not None and spec.loader is not None:
            self.__path__ = list(spec.submodule_search_locations or ())
            spec.loader.exec_module(self)
        self.__class__ = ModuleType  # type: ignore[assignment]


def _unmarked(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
    """A decorator, with arguments or without, that changes nothing."""
    return _unmarked if function is None else function


@contextmanager
def _undistributed() -> Iterator[None]:
    """What transformers imports meanwhile sees a torch that was built without `distributed`."""
    from transformers import utils
    from transformers.utils import import_utils

    name = "is_torch_distributed_available"
    with patched(utils, name, _no), patched(import_utils, name, _no):
        yield


def _no() -> bool:
    return False


@contextmanager
def _scanned_once() -> Iterator[None]:
    """While transformers is imported, which looks through the folders of all its models twice: it
    remembers 128 of more than 500."""
    remember = functools.lru_cache

    def lru_cache(maxsize: Any = 128, typed: bool = False) -> Any:
        if getattr(maxsize, "__name__", None) == "create_import_structure_from_path":
            return functools.cache(maxsize)
        return remember(maxsize, typed)

    with patched(functools, "lru_cache", lru_cache):
        yield
