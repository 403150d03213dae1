"""Vectors in fewer bytes.

No calibration is known for a model, so each number of eight bits depends on its own vector alone:
the vector's greatest number, whatever its sign, is 127. The cosine of two vectors stays what it was
but for rounding; their lengths are lost.
"""

from array import array
from collections.abc import Iterable
from typing import Any, Literal

OutputType = Literal["float", "int8", "uint8", "binary", "ubinary"]


def converted(row: "array[float]", output_type: OutputType) -> "array[Any]":
    match output_type:
        case "float":
            return row
        case "int8":
            return array("b", _eight_bits(row))
        case "uint8":
            return array("B", (number + 128 for number in _eight_bits(row)))
        case "ubinary":
            return array("B", _signs(row))
        case "binary":
            return array("b", (byte - 128 for byte in _signs(row)))


def _eight_bits(row: "array[float]") -> Iterable[int]:
    greatest = max(map(abs, row))
    scale = 127 / greatest if greatest else 0.0
    return (round(number * scale) for number in row)


def _signs(row: "array[float]") -> bytes:
    """A bit for each number, 1 if it is over 0, the first one the highest of its byte."""
    bits = "".join("1" if number > 0 else "0" for number in row)
    size = -(-len(bits) // 8)
    return int(bits.ljust(8 * size, "0"), 2).to_bytes(size, "big")
