"""Parameters as transformers sets them in a model that it loads: brought to their format one by
one, so that the plain ones of two layers are never in memory together."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from roseinfer.checkpoints.fingerprint import sample
from roseinfer.model.families import head_of, linears_of_layers
from roseinfer.model.limits import text_config
from roseinfer.model.linears import parameter_of, place_of
from roseinfer.model.quantization import FORMATS, in_order, quantize_linear
from roseinfer.model.quantized_linears import QuantizedLinears
from roseinfer.model.quantized_weight import CompactWeight

#: transformers' switch for reading a tensor when it is its turn, not all at once in threads.
_IN_TURN = "HF_DEACTIVATE_ASYNC_LOAD"


#: The matrices of a file by the names of parameters. Each is read when it is called, with the
#: parameter of what it stands for; None if it cannot be kept.
StoredMatrices = Mapping[str, Callable[[Tensor], CompactWeight | None]]


@contextmanager
def in_turn() -> Iterator[None]:
    """Within, transformers reads a tensor when it sets the parameter, and none ahead of it."""
    before = os.environ.get(_IN_TURN)
    os.environ[_IN_TURN] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_IN_TURN]
        else:
            os.environ[_IN_TURN] = before


class Arrivals:
    """What is taken of one model's layers; its head and embeddings are left as they are.

    `weights` is what they are brought to. Those of a file come from what `stored` finds in it for
    the model, which has no numbers yet; so does a head that is no embedding.
    """

    def __init__(
        self, weights: str, stored: Callable[[nn.Module], StoredMatrices] | None = None
    ) -> None:
        self.taken = QuantizedLinears()
        self.samples: dict[Tensor, Tensor] = {}
        """what a fingerprint has of the parameters that were dropped"""
        self._weights = weights
        self._find_stored = stored
        self._stored: StoredMatrices = {}
        self._parents: dict[nn.Module, nn.Module] = {}
        self._linears: dict[tuple[nn.Module, str], list[Any]] | None = None
        self._names: dict[nn.Module, str] = {}
        self._thread = threading.get_ident()
        self._is_setting = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within, this thread loads the model."""
        handles = (
            register_module_module_registration_hook(self._add_module),
            register_module_parameter_registration_hook(self._take),
        )
        try:
            with in_turn():
                yield
        finally:
            for handle in handles:
                handle.remove()
            self._parents.clear()
            self._linears = None
            self._names.clear()

    def take_head(self, model: nn.Module) -> None:
        """The head of a loaded model, where a file has it and it is the embedding too, which the
        model keeps."""
        if self._find_stored is None or not _is_tied(model) or (head := head_of(model)) is None:
            return
        parameter = parameter_of(head)
        name = next(name for name, own in model.named_parameters() if own is parameter)
        if (weight := self._read(name, head)) is not None:
            self.taken[head] = weight

    def _add_module(self, parent: nn.Module, _name: str, module: nn.Module | None) -> None:
        if module is not None and threading.get_ident() == self._thread:
            self._parents[module] = parent

    def _take(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        # What no file has is set too, to be filled with random numbers.
        if parameter is None or not getattr(parameter, "_is_hf_initialized", False):
            return
        if parameter.is_meta or self._is_setting or module not in self._parents:
            return
        if self._linears is None:
            self._linears = self._find_linears(module)
        if linears := self._linears.get((module, name)):
            self._is_setting = True
            setattr(module, name, parameter)  # where the linears read it
            self._is_setting = False
            made = [self._make(f"{self._names[module]}.{name}", linear) for linear in linears]
            weights = [weight for weight in made if weight is not None]
            if len(weights) < len(linears):
                return
            self.samples[parameter] = sample(parameter.detach())
            for linear, weight in zip(linears, weights, strict=True):
                self.taken[linear] = weight
            self.taken.drop(linears)

    def _make(self, name: str, linear: Any) -> CompactWeight | None:
        if self._find_stored is not None:
            return self._read(name, linear)
        inside, _ = FORMATS[self._weights]
        return quantize_linear(linear, self._weights, inside)

    def _read(self, name: str, linear: Any) -> CompactWeight | None:
        read = self._stored.get(name)
        return None if read is None else in_order(read(parameter_of(linear).detach()), linear)

    def _find_linears(self, module: nn.Module) -> dict[tuple[nn.Module, str], list[Any]]:
        while module in self._parents:
            module = self._parents[module]
        places: dict[tuple[nn.Module, str], list[Any]] = {}
        linears = linears_of_layers(module)
        if self._find_stored is not None and not _is_tied(module):
            linears += [head for head in [head_of(module)] if head is not None]
        for linear in linears:
            places.setdefault(place_of(linear), []).append(linear)
        self._names = {own: path for path, own in module.named_modules()}
        if self._find_stored is not None:
            self._stored = self._find_stored(module)
        return places


def _is_tied(model: Any) -> bool:
    return bool(text_config(model).tie_word_embeddings)
