"""Counter-based random numbers: a function of a request's seed and the position of its token."""

from torch import Tensor

# splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014), its
# constants written as the signed 64-bit integers that torch's wrapping arithmetic wants.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX2 = 0x94D049BB133111EB - 2**64


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Logical shift right: torch's `>>` on int64 copies the sign bit."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _shift_right(bits, 30)) * _MIX1
    bits = (bits ^ _shift_right(bits, 27)) * _MIX2
    return bits ^ _shift_right(bits, 31)


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """One float64 in [0, 1) for each (seed, position) pair of the int64 tensors [B]."""
    state = _mix(seeds + _GOLDEN) + (positions + 1) * _GOLDEN
    return _shift_right(_mix(state), 11).double() * 2.0**-53
