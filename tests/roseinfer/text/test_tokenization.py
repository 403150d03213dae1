"""Plain prompts to token ids, and texts that a tokenizer cannot read."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from rose.errors import InvalidParameter
from roseinfer.text.tokenization import encode


def test_a_text_without_tokens_is_refused() -> None:
    # given: a vocabulary that knows one word and lacks the token for others
    words = Tokenizer(WordLevel({"Hello": 0}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    # then
    assert encode(tokenizer, "Hello") == [0]
    with pytest.raises(InvalidParameter, match="cannot read the prompt"):
        encode(tokenizer, "Goodbye")
