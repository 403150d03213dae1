"""Tokens on their way from the process that makes them to the one that computes."""

from roseinfer.encoders.tokens import EncodedInput, packed, unpacked


def test_what_is_packed_is_unpacked() -> None:
    inputs = [
        EncodedInput((1, 5, 2)),
        EncodedInput((1, 5, 2, 7, 2), (0, 0, 0, 1, 1)),
        EncodedInput((250_000,), prompt_tokens=3),
    ]

    assert unpacked(packed(inputs)) == inputs
    assert unpacked(packed([])) == []
