"""The engine's options for a GPU."""

from dataclasses import dataclass

from rose.errors import ConfigurationError

BACKENDS = ("sdpa", "triton")

GRAPH_BYTES = 1024**3


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """`attention` is one of BACKENDS; None chooses what suits the device.

    With `cuda_graphs`, decode steps of up to `max_batch_size` sequences are captured at load, in
    GRAPH_BYTES of memory or little more. The KV cache takes what `memory_utilization` of the
    device leaves beside the weights, the graphs, and a step of `max_batch_size` sequences and
    `max_step_tokens` tokens. Raises ConfigurationError for impossible values.
    """

    attention: str | None = None
    cuda_graphs: bool = True
    memory_utilization: float = 0.9
    max_batch_size: int = 32
    max_step_tokens: int = 512

    def __post_init__(self) -> None:
        if self.attention is not None and self.attention not in BACKENDS:
            raise ConfigurationError(
                f"attention={self.attention!r} is not one of {', '.join(BACKENDS)}"
            )
        if not 0 < self.memory_utilization <= 1:
            raise ConfigurationError(
                f"gpu_memory_utilization={self.memory_utilization} must be above 0 and at most 1"
            )
