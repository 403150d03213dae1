"""Where a model goes, and in which dtype."""

import torch

from rose.errors import ConfigurationError
from roseinfer.model.quantization import check_format

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def parse_target(
    device: str | None, dtype: str | None, weights: str | None
) -> tuple[torch.device, torch.dtype | None]:
    """Where the model goes, and in which dtype. Raises ConfigurationError."""
    target = parse_device(device)
    if weights is None:
        return target, parse_dtype(dtype, target)
    check_format(weights, target, None if dtype is None else parse_dtype(dtype, target))
    return target, torch.bfloat16


def parse_device(name: str | None) -> torch.device:
    """The device called `name`; None means CUDA where there is one. Raises ConfigurationError."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(f"device={name!r} cannot be used: {reason}") from error
    return device


def parse_dtype(name: str | None, device: torch.device) -> torch.dtype | None:
    """The dtype called `name`. None means float32 on CPU and the checkpoint's own on CUDA, which
    is bfloat16 for a GGUF file."""
    if name is None:
        return torch.float32 if device.type == "cpu" else None
    if name not in _DTYPES:
        raise ConfigurationError(f"dtype={name!r} is not one of {', '.join(_DTYPES)}")
    return _DTYPES[name]
