"""From the hidden states of a batch to a vector for each text."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rose.errors import UnsupportedModel
from roseinfer.checkpoints.safetensors_files import tensors_of_files
from roseinfer.encoders.model_files import Dense, LayerNorm, Normalize

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "ReLU": functional.relu,
    "GELU": functional.gelu,
    "SiLU": functional.silu,
}


def pool(hidden: Tensor, mask: Tensor, modes: Sequence[str]) -> Tensor:
    """`hidden`: float32, texts x tokens x width; `mask`: 1 for each token that counts, of a text at
    least one. Returns texts x (width times modes)."""
    return torch.cat([_POOLINGS[mode](hidden, mask) for mode in modes], dim=1)


def _cls(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden[torch.arange(len(hidden), device=hidden.device), mask.argmax(dim=1)]


def _max(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden.masked_fill(mask[..., None] == 0, -torch.inf).amax(dim=1)


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    return _weighted(hidden, mask) / mask.sum(dim=1, keepdim=True)


def _mean_sqrt(hidden: Tensor, mask: Tensor) -> Tensor:
    return _weighted(hidden, mask) / mask.sum(dim=1, keepdim=True).sqrt()


def _weighted_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    weights = mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return _weighted(hidden, weights) / weights.sum(dim=1, keepdim=True)


def _last(hidden: Tensor, mask: Tensor) -> Tensor:
    places = torch.arange(mask.shape[1], device=mask.device)
    last = (mask * places).argmax(dim=1)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


def _weighted(hidden: Tensor, weights: Tensor) -> Tensor:
    return torch.einsum("btw,bt->bw", hidden, weights.to(hidden.dtype))


_POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


def activate(name: str, numbers: Tensor) -> Tensor:
    return _ACTIVATIONS[name](numbers)


class Head:
    """The modules behind the pooling, in float32."""

    def __init__(
        self, parts: Sequence[Dense | LayerNorm | Normalize], width: int, device: torch.device
    ) -> None:
        """`width`: of what the pooling gives. Raises: UnsupportedModel"""
        self._steps: list[Callable[[Tensor], Tensor]] = []
        self.normalizes = False
        for part in parts:
            if isinstance(part, Normalize):
                self._steps.append(_normalized)
                self.normalizes = True
                continue
            own = part.in_features if isinstance(part, Dense) else part.dimension
            if own != width:
                raise UnsupportedModel(
                    f"the module in {str(part.folder)!r} takes {own} numbers, and the one before "
                    f"it gives {width}"
                )
            if isinstance(part, Dense):
                self._steps.append(_dense(part, device))
                width = part.out_features
            else:
                self._steps.append(_layer_norm(part, device))
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
