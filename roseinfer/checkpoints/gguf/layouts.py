"""How a family lies in a GGUF file, for the families that transformers does not read from one.

A layout is made of the header: the configuration, and for each parameter the tensors that it is
made of. llama.cpp's converter puts rows in another order, stores what it computes of a parameter
(-exp(A_log), a norm's weight plus 1) and leaves dimensions out. Each of these is undone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rose.errors import UnsupportedModel
from roseinfer.checkpoints.gguf.header import Header
from roseinfer.checkpoints.lazy_tensor import LazyTensor
from roseinfer.model.quantized_weight import ROWS_SIZE, CompactWeight


def alone(tensor: Tensor) -> Tensor:
    return tensor


def side_by_side(*tensors: Tensor) -> Tensor:
    """Outputs of one behind those of the other, in each expert if there are such."""
    return torch.cat(tensors, dim=-2)


@dataclass(frozen=True, slots=True)
class Source:
    """The tensors that a parameter is made of, by their names in the file."""

    names: tuple[str, ...]
    make: Callable[..., Tensor] = alone
    moves_rows: bool = True
    """`make` does nothing else, whatever is in them: rows of blocks can be moved too"""

    def order(self, shapes: Iterable[Sequence[int]]) -> Tensor:
        """Which row of the tensors each of the parameter's is, from `shapes` of the tensors."""
        tensors, first = [], 0
        for shape in shapes:
            rows = torch.arange(first, first + torch.Size(shape[:-1]).numel())
            first += len(rows)
            tensors.append(rows.view(*shape[:-1], 1))
        return self.make(*tensors).flatten()

    def keep(
        self, weights: Sequence[CompactWeight | None], shapes: Sequence[Sequence[int]]
    ) -> CompactWeight | None:
        """The parameter, made of the same blocks; None if it cannot be."""
        parts = [weight for weight in weights if weight is not None]
        if not self.moves_rows or len(parts) != len(weights) or len({p.form for p in parts}) != 1:
            return None
        return CompactWeight.join(parts).take(self.order(shapes))


@dataclass(frozen=True, slots=True)
class Layout:
    config: Any
    sources: Mapping[str, Source]
    """by the parameters' names"""
    read: frozenset[str]
    """the keys that the configuration is made of, after the architecture's name"""


class Draft:
    """A layout in the making: it knows which keys were asked for, and which tensors have a use."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._read: set[str] = set()
        self._sources: dict[str, Source] = {}
        self._unused: set[str] = set()

    def value(self, name: str) -> Any:
        """Raises UnsupportedModel if the file does not say."""
        value = self.get(name)
        if value is None:
            key = f"{self._header.architecture}.{name}"
            raise self.refusal(f"it has no {key}, which nothing else says")
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """Of an array of equal numbers it is the number."""
        self._read.add(name)
        value = self._header.value(name)
        if value is None:
            values = self._header.arrays.get(f"{self._header.architecture}.{name}")
            value = values[0] if values and len(set(values)) == 1 else values
        return default if value is None else value

    def each(self, name: str, layers: int) -> list[Any]:
        """One for each layer."""
        value = self.value(name)
        values = value if isinstance(value, list) else [value] * layers
        if len(values) < layers:
            raise self.refusal(f"its {name} has {len(values)} numbers for {layers} layers")
        return values[:layers]

    def factors(self, name: str) -> list[float] | None:
        """The numbers of a tensor that is part of the configuration; None if the file has none."""
        if (factors := self._header.factors.get(name)) is not None:
            self._unused.add(name)
        return factors

    @property
    def vocabulary(self) -> int:
        return self._header.counts.get("tokenizer.ggml.tokens", 0)

    def numbers(self, name: str) -> int:
        """How many a tensor has; 0 if there is none."""
        return self._header.elements.get(name, 0)

    def has(self, name: str) -> bool:
        return name in self._header.elements

    def has_any(self, ending: str) -> bool:
        return any(name.endswith(ending) for name in self._header.elements)

    def add(
        self,
        parameter: str,
        *names: str,
        make: Callable[..., Tensor] = alone,
        moves_rows: bool = True,
    ) -> None:
        """Where the file has all of these tensors."""
        if all(map(self.has, names)):
            self._sources[parameter] = Source(names, make, moves_rows)

    def rename(self, tensors: str, parameters: str, names: Mapping[str, str], **how: Any) -> None:
        """Weights and biases. `tensors` and `parameters` are what their names begin with."""
        for name, parameter in names.items():
            for part in ("weight", "bias"):
                self.add(f"{parameters}{parameter}.{part}", f"{tensors}{name}.{part}", **how)

    def leave_out(self, beginning: str) -> None:
        """What the model does not need to go on with a text."""
        self._unused |= {name for name in self._header.elements if name.startswith(beginning)}

    def finish(self, make_config: Callable[..., Any], **settings: Any) -> Layout:
        """Raises UnsupportedModel for a tensor without a use."""
        used = {name for source in self._sources.values() for name in source.names}
        if left := sorted(self._header.elements.keys() - used - self._unused):
            raise self.refusal(f"nothing reads {len(left)} of its tensors, {left[0]} among them")
        special = {f"{name}_token_id": None for name in ("pad", "bos", "eos")}
        config = make_config(
            vocab_size=self.vocabulary,
            tie_word_embeddings=not self.has("output.weight"),
            **(special | settings),
        )
        return Layout(config, self._sources, frozenset(self._read))

    def refusal(self, reason: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"this GGUF file of architecture {self._header.architecture!r} cannot be loaded: "
            f"{reason}; use the model's folder of safetensors instead"
        )


def lazy_parameters(path: Path, layout: Layout, dtype: torch.dtype) -> dict[str, LazyTensor]:
    """All that the layout has; matrices in `dtype`, the rest in float32. A parameter is made when
    it is read: that raises UnsupportedModel for tensors of other sizes than the configuration's.
    """
    from gguf import GGUFReader

    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}

    def make(parameter: str, source: Source) -> Tensor:
        # What only puts numbers side by side needs no more of them than `dtype` has.
        early = dtype if source.make in (alone, side_by_side) else torch.float32
        try:
            own = [tensors[name] for name in source.names]
            if source.make is side_by_side:
                whole = _dequantize_side_by_side(own, early)
            else:
                whole = source.make(*(_dequantize(tensor, early) for tensor in own)).contiguous()
        except (IndexError, RuntimeError, ValueError) as error:
            raise UnsupportedModel(
                f"no {parameter} can be made of {' and '.join(source.names)} of this GGUF file: "
                "their sizes are not those that its metadata says; download it again"
            ) from error
        return whole.to(dtype) if whole.dim() > 1 else whole

    return {
        parameter: LazyTensor(
            partial(make, parameter, source),
            sum(int(tensors[name].n_elements) for name in source.names),
        )
        for parameter, source in layout.sources.items()
    }


def read_tensor(path: Path, name: str) -> Tensor:
    """In float32. Raises StopIteration if the file has none of this name."""
    from gguf import GGUFReader

    return _dequantize(
        next(one for one in GGUFReader(path).tensors if one.name == name), torch.float32
    )


def _dequantize_side_by_side(tensors: Sequence[Any], dtype: torch.dtype) -> Tensor:
    """As `side_by_side` has them, one in memory beside the whole. Raises RuntimeError if they are
    no such tensors."""
    shapes = [torch.Size(tensor.shape[::-1].tolist()) for tensor in tensors]
    *outer, _, inputs = shapes[0]
    whole = torch.empty(*outer, sum(shape[-2] for shape in shapes), inputs, dtype=dtype)
    places = torch.split(whole, [shape[-2] for shape in shapes], dim=-2)
    for place, shape, tensor in zip(places, shapes, tensors, strict=True):
        if place.shape != shape:
            raise RuntimeError(f"tensors of {list(shapes[0])} and {list(shape)} side by side")
        place.copy_(_dequantize(tensor, dtype))
    return whole


def _dequantize(tensor: Any, dtype: torch.dtype) -> Tensor:
    """A tensor of a GGUF file, some rows at a time; a vector in float32."""
    from gguf import dequantize

    shape = tensor.shape[::-1].tolist()
    whole = torch.empty(shape, dtype=dtype if len(shape) > 1 else torch.float32)
    rows, stored = whole.view(-1, shape[-1]), tensor.data.reshape(-1, tensor.data.shape[-1])
    rows_at_once = max(1, ROWS_SIZE // shape[-1])
    for begin in range(0, len(rows), rows_at_once):
        part = slice(begin, begin + rows_at_once)
        numbers = dequantize(stored[part], tensor.tensor_type)
        rows[part] = torch.from_numpy(numbers.copy())  # floats are the file's, which nobody writes
    return whole
