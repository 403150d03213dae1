"""Parameters as transformers sets them in a model that it loads: quantized one by one, so that the
plain ones of two layers are never in memory together."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from roseinfer.checkpoints.fingerprint import sample
from roseinfer.model.families import linears_of_layers
from roseinfer.model.linears import place_of
from roseinfer.model.quantization import FORMATS, quantize_linear
from roseinfer.model.quantized_linears import QuantizedLinears

#: transformers' switch for reading a tensor when it is its turn, not all at once in threads.
_IN_TURN = "HF_DEACTIVATE_ASYNC_LOAD"


class Arrivals:
    """What is taken of one model's layers; its head and embeddings are left as they are."""

    def __init__(self, weights: str) -> None:
        self.taken = QuantizedLinears()
        self.samples: dict[Tensor, Tensor] = {}
        """what a fingerprint has of the parameters that were dropped"""
        self._weights = weights
        self._parents: dict[nn.Module, nn.Module] = {}
        self._linears: dict[tuple[nn.Module, str], list[Any]] = {}
        self._thread = threading.get_ident()
        self._is_setting = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within, this thread loads the model."""
        before = os.environ.get(_IN_TURN)
        handles = (
            register_module_module_registration_hook(self._add_module),
            register_module_parameter_registration_hook(self._take),
        )
        os.environ[_IN_TURN] = "1"
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            if before is None:
                del os.environ[_IN_TURN]
            else:
                os.environ[_IN_TURN] = before
            self._parents.clear()
            self._linears.clear()

    def _add_module(self, parent: nn.Module, _name: str, module: nn.Module | None) -> None:
        if module is not None and threading.get_ident() == self._thread:
            self._parents[module] = parent

    def _take(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        # What no file has is set too, to be filled with random numbers.
        if parameter is None or not getattr(parameter, "_is_hf_initialized", False):
            return
        if parameter.is_meta or self._is_setting or module not in self._parents:
            return
        if not self._linears:
            self._find_linears(module)
        if linears := self._linears.get((module, name)):
            self._is_setting = True
            setattr(module, name, parameter)  # where the linears read it
            self._is_setting = False
            self.samples[parameter] = sample(parameter.detach())
            inside, _ = FORMATS[self._weights]
            for linear in linears:
                self.taken[linear] = quantize_linear(linear, self._weights, inside)
            self.taken.drop(linears)

    def _find_linears(self, module: nn.Module) -> None:
        while module in self._parents:
            module = self._parents[module]
        for linear in linears_of_layers(module):
            self._linears.setdefault(place_of(linear), []).append(linear)
