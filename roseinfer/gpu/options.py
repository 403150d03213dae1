"""What can be chosen about a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from rose_errors import ConfigurationError

BACKENDS = ("sdpa", "triton", "flashinfer")


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """`attention` is one of BACKENDS; None chooses what suits the device. Raises
    ConfigurationError for another."""

    attention: str | None = None

    def __post_init__(self) -> None:
        if self.attention is not None and self.attention not in BACKENDS:
            raise ConfigurationError(
                f"attention={self.attention!r} is not one of {', '.join(BACKENDS)}"
            )
