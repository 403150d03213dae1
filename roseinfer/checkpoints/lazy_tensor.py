"""A tensor of a checkpoint that is made when it is read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """Stands for a tensor in the state that transformers loads: it reads `tensor[...]` when it sets
    the parameter."""

    make: Callable[[], Tensor]
    numbers: int
    """that it will have"""

    def numel(self) -> int:
        return self.numbers

    def __getitem__(self, _index: Any) -> Tensor:
        return self.make()

    def get_dtype(self) -> str:
        """As files of safetensors call it: floats of some size, whichever they will be."""
        return "F32"
