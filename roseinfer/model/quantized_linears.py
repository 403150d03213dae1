"""The quantized weights of a model's linear layers, which have none of their own meanwhile."""

import mmap
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from roseinfer.devices.main_memory import release_freed_memory
from roseinfer.model.linears import give_weight, parameter_of
from roseinfer.model.quantized_weight import CompactWeight, QuantizedWeight

#: A layer is called as a whole, while code of its family may read what is inside without a call.
_LAYER = re.compile(r"(.*?\.\d+)(?:\.|$)")

#: Bytes of which the C library may keep what lies between, in pieces that nothing else fits into.
_FREED = 64 << 20


class QuantizedLinears:
    """Weights by the linear layers that they were made of, until `pop` hands them out.

    A parameter whose layers have all been taken can be dropped: its numbers then read as zeros and
    take no memory.
    """

    def __init__(self) -> None:
        self._weights: dict[Any, CompactWeight] = {}
        self._dropped: dict[nn.Parameter, list[Any]] = {}
        self._zeros = torch.zeros(0)
        self._freed = 0

    def __len__(self) -> int:
        return len(self._weights)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._weights)

    def __contains__(self, linear: Any) -> bool:
        return linear in self._weights

    def __setitem__(self, linear: Any, weight: CompactWeight) -> None:
        self._weights[linear] = weight

    def __getitem__(self, linear: Any) -> CompactWeight:
        return self._weights[linear]

    def pop(self, linear: Any) -> QuantizedWeight:
        weight = self._weights.pop(linear).whole()
        self._count_freed(weight.values.nbytes)
        return weight

    def drop(self, linears: list[Any]) -> None:
        """The numbers of the parameter that these share; all of them are quantized."""
        parameter = parameter_of(linears[0])
        self._dropped[parameter] = linears
        parameter.data = self._placeholder(parameter)
        self._count_freed(parameter.nbytes)

    def give_back(self, linears: list[Any]) -> None:
        """To the model what was taken of these, none of which shares a parameter with others."""
        for linear in [linear for linear in linears if linear in self._weights]:
            parameter = parameter_of(linear)
            if parameter in self._dropped:
                self._give([parameter])
                del self._dropped[parameter]
            del self._weights[linear]

    def restore(self) -> None:
        """Give all dropped parameters what their quantized weights stand for."""
        self._give(list(self._dropped))

    @contextmanager
    def lent(self, model: nn.Module) -> Iterator[None]:
        """Within, each layer of `model` has what its quantized weights stand for, while it
        computes."""
        layers: dict[str, list[nn.Parameter]] = {}
        for name, module in model.named_modules():
            for parameter in module.parameters(recurse=False):
                if parameter in self._dropped:
                    match = _LAYER.match(name)
                    layers.setdefault(match[1] if match else name, []).append(parameter)
        with ExitStack() as stack:
            for name, parameters in layers.items():
                stack.callback(self._take, parameters)
                layer = model.get_submodule(name)
                for register, change in (
                    (layer.register_forward_pre_hook, self._give),
                    (layer.register_forward_hook, self._take),
                ):
                    stack.callback(register(_calling(change, parameters)).remove)
            yield

    def _give(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            shape = parameter.shape
            parameter.data = parameter.data.new_empty(0)
            for linear in self._dropped[parameter]:
                give_weight(linear, self._weights[linear].dequantize(parameter.dtype), shape)

    def _take(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            parameter.data = self._placeholder(parameter)

    def _count_freed(self, size: int) -> None:
        self._freed += size
        if self._freed > _FREED:
            self._freed = 0
            release_freed_memory()

    def _placeholder(self, parameter: nn.Parameter) -> Tensor:
        """Zeros in its shape."""
        if self._zeros.numel() < parameter.numel() or self._zeros.dtype != parameter.dtype:
            # Pages that nobody writes take no memory; `torch.zeros` writes them.
            pages = mmap.mmap(-1, max(parameter.nbytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._zeros = torch.frombuffer(pages, dtype=parameter.dtype, count=parameter.numel())
        return self._zeros[: parameter.numel()].view(parameter.shape)


def _calling(change: Any, parameters: list[nn.Parameter]) -> Any:
    def hook(*_: Any) -> None:
        change(parameters)

    return hook
