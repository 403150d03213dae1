"""Tokens of texts and pairs, and their way from the process that makes them to the one that
computes."""

import pytest
from tokenizers import normalizers

from rose.errors import InvalidParameter
from roseinfer.encoders.tokens import EncodedInput, InputRules, InputTokenizer, packed, unpacked
from tests.support.encoders import VOCAB, tokenizer


@pytest.fixture
def lowering() -> InputTokenizer:
    """Of a model that wants small letters, whose tokenizer knows no others."""
    backend = tokenizer().backend_tokenizer
    backend.normalizer = normalizers.NFC()
    rules = InputRules(
        model="m",
        tokenizer=backend.to_str(),
        max_tokens=64,
        vocab_size=VOCAB,
        lower_case=True,
        prompts={},
        default_prompt=None,
        pools_prompt=True,
        has_types=False,
        special_ids=(),
    )
    return InputTokenizer(rules)


def test_texts_and_both_texts_of_a_pair_are_lowered(lowering: InputTokenizer) -> None:
    assert lowering.tokenize(["WHO won"]) == lowering.tokenize(["who won"])
    (pair,) = lowering.tokenize_pairs([("WHO won", "the Hare")])
    assert [pair] == lowering.tokenize_pairs([("who won", "the hare")])


@pytest.mark.parametrize("pair", [("who\ud800", "hare"), ("who", "hare\ud800")])
def test_a_pair_with_half_a_character_is_refused(
    lowering: InputTokenizer, pair: tuple[str, str]
) -> None:
    with pytest.raises(InvalidParameter, match=r"prompt: .*surrogate"):
        lowering.tokenize_pairs([pair])


def test_what_is_packed_is_unpacked() -> None:
    inputs = [
        EncodedInput((1, 5, 2)),
        EncodedInput((1, 5, 2, 7, 2), (0, 0, 0, 1, 1)),
        EncodedInput((250_000,), prompt_tokens=3),
    ]

    assert unpacked(packed(inputs)) == inputs
    assert unpacked(packed([])) == []
