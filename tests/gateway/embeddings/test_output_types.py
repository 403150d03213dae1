"""Vectors in fewer bytes."""

from array import array

import pytest

from rose_gateway.embeddings.output_types import OutputType, converted

ROW = array("f", [0.5, -0.25, 0.0, 1.0, -1.0, 0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
    ("output_type", "expected"),
    [
        ("float", ROW.tolist()),
        ("int8", [64, -32, 0, 127, -127, 13, 25, 38, 51]),
        ("uint8", [192, 96, 128, 255, 1, 141, 153, 166, 179]),
        ("ubinary", [0b10010111, 0b10000000]),
        ("binary", [0b10010111 - 128, 0]),
    ],
)
def test_each_type_is_what_its_name_says(output_type: OutputType, expected: list[float]) -> None:
    assert converted(ROW, output_type).tolist() == expected


def test_a_vector_of_nothing_stays_one() -> None:
    assert converted(array("f", [0.0, 0.0]), "int8").tolist() == [0, 0]
