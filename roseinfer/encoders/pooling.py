"""From the hidden states of a batch to a vector for each text."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rose.errors import UnsupportedModel
from roseinfer.checkpoints.gguf.layouts import read_tensor
from roseinfer.checkpoints.safetensors_files import tensors_of_files
from roseinfer.encoders.model_files import Dense, GgufDense, LayerNorm, Normalize, Part

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "ReLU": functional.relu,
    "GELU": functional.gelu,
    "SiLU": functional.silu,
}


def pool(rows: Tensor, first: int, modes: Sequence[str]) -> Tensor:
    """The vector of a text, as wide as its hidden states times the modes. `rows`: float32 [tokens,
    width], of those that count, at least one; `first`: how many of the text's do not."""
    return torch.cat([_POOLINGS[mode](rows, first) for mode in modes])


def _weighted_mean(rows: Tensor, first: int) -> Tensor:
    weights = torch.arange(first + 1.0, first + len(rows) + 1, device=rows.device)
    return weights @ rows / weights.sum()


_POOLINGS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "cls": lambda rows, _: rows[0],
    "max": lambda rows, _: rows.amax(0),
    "mean": lambda rows, _: rows.mean(0),
    "mean_sqrt_len_tokens": lambda rows, _: rows.sum(0) / len(rows) ** 0.5,
    "weightedmean": _weighted_mean,
    "lasttoken": lambda rows, _: rows[-1],
}


def activate(name: str, numbers: Tensor) -> Tensor:
    return _ACTIVATIONS[name](numbers)


class Head:
    """The modules behind the pooling, in float32."""

    def __init__(
        self,
        parts: Sequence[Part],
        width: int,
        device: torch.device,
        dimensions: int | None = None,
    ) -> None:
        """`width`: of what the pooling gives. `dimensions`: so many of the first numbers are left,
        at most. Raises: UnsupportedModel"""
        self._steps: list[Callable[[Tensor], Tensor]] = []
        self.normalizes = False
        for part in parts:
            if isinstance(part, Normalize):
                self._steps.append(_normalized)
                self.normalizes = True
                continue
            own = part.dimension if isinstance(part, LayerNorm) else part.in_features
            if own != width:
                place = part.tensor if isinstance(part, GgufDense) else part.folder
                raise UnsupportedModel(
                    f"the module in {str(place)!r} takes {own} numbers, and the one before "
                    f"it gives {width}"
                )
            match part:
                case LayerNorm():
                    self._steps.append(_layer_norm(part, device))
                case Dense():
                    self._steps.append(_dense(part, device))
                    width = part.out_features
                case GgufDense():
                    self._steps.append(_gguf_dense(part, device))
                    width = part.out_features
        if dimensions is not None and dimensions < width:
            normalize, width = self.normalizes, dimensions
            self._steps.append(lambda rows: cut(rows, dimensions, normalize=normalize))
        self.width = width

    def __call__(self, vectors: Tensor) -> Tensor:
        for step in self._steps:
            vectors = step(vectors)
        return vectors


def _normalized(vectors: Tensor) -> Tensor:
    return functional.normalize(vectors, dim=-1)


def cut(vectors: Tensor, dimensions: int, *, normalize: bool) -> Tensor:
    """The first ones of each, brought to length 1 with `normalize`."""
    shorter = vectors[..., :dimensions]
    return _normalized(shorter) if normalize else shorter


def _dense(part: Dense, device: torch.device) -> Callable[[Tensor], Tensor]:
    linear = nn.Linear(part.in_features, part.out_features, bias=part.bias)
    _load(linear, "linear.", part, device)
    activation = _ACTIVATIONS[part.activation]
    return lambda vectors: activation(linear(vectors))


def _gguf_dense(part: GgufDense, device: torch.device) -> Callable[[Tensor], Tensor]:
    weight = read_tensor(part.file, part.tensor).to(device)
    if weight.shape != (part.out_features, part.in_features):
        raise UnsupportedModel(
            f"{part.tensor} of {str(part.file)!r} has the sizes {list(weight.shape)}, and its "
            f"metadata says {part.out_features} and {part.in_features}"
        )
    return lambda vectors: functional.linear(vectors, weight)


def _layer_norm(part: LayerNorm, device: torch.device) -> Callable[[Tensor], Tensor]:
    norm = nn.LayerNorm(part.dimension)
    _load(norm, "norm.", part, device)
    return norm


def _load(module: nn.Module, prefix: str, part: Dense | LayerNorm, device: torch.device) -> None:
    stored = tensors_of_files(str(part.folder))
    if not stored:
        raise UnsupportedModel(
            f"the module in {str(part.folder)!r} has no model.safetensors: a pickle may run code, "
            "so save the model again with safetensors"
        )
    weights = {name.removeprefix(prefix): tensor.float() for name, tensor in stored.items()}
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        raise UnsupportedModel(
            f"the weights in {str(part.folder)!r} do not fit its config.json: {error}"
        ) from error
    module.to(device).eval().requires_grad_(False)
