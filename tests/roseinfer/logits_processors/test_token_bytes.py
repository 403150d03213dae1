"""The bytes of single tokens, for tokenizers of both kinds."""

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from roseinfer.demo_model import MODEL_PATH
from roseinfer.logits_processors.grammars import GrammarCompiler
from tests.roseinfer.models import byte_tokenizer

TEXTS = ["the cat", " two  spaces\n\ttabs ", "naïve 猫 🦊", "</s>"]


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """As those of Llama 2 and Mistral: "▁" for a space, and a token for each byte."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = ["▁", "t", "h", "e", "c", "a", "▁t", "he", "▁the"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he")]
    vocab = {name: number for number, name in enumerate([*names, *pieces])}
    tokenizer = Tokenizer(
        BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names[:3]])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


TOKENIZERS = {
    "byte-level": byte_tokenizer,
    "sentencepiece": sentencepiece_tokenizer,
    "built-in": lambda: AutoTokenizer.from_pretrained(MODEL_PATH),
}


def token_bytes(tokenizer: Any, vocab_size: int = 0) -> list[bytes]:
    found = GrammarCompiler(tokenizer, vocab_size, {tokenizer.eos_token_id}).token_bytes()
    assert found is not None
    return found


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_tokens_join_to_their_text(kind: str, text: str) -> None:
    # given
    tokenizer = TOKENIZERS[kind]()
    bytes_of = token_bytes(tokenizer)
    # when
    ids = tokenizer.encode(text, add_special_tokens=False)
    # then: sentencepiece begins a text with a space
    joined = b"".join(bytes_of[i] for i in ids).decode()
    assert joined.removeprefix(" " if kind == "sentencepiece" else "") == text


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_special_token_is_its_name(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    assert token_bytes(tokenizer)[tokenizer.eos_token_id] == tokenizer.eos_token.encode()


def test_ids_that_the_tokenizer_lacks_are_empty_or_not_there() -> None:
    # given: a model with more rows than the tokenizer has tokens, and a gap in the ids
    tokenizer = byte_tokenizer()
    size = len(tokenizer)
    # then
    assert len(token_bytes(tokenizer, size + 50)) == max(tokenizer.get_vocab().values()) + 1


def test_a_tokenizer_without_an_end_or_none_at_all_has_no_bytes() -> None:
    assert GrammarCompiler(None, 10, {2}).token_bytes() is None
    assert GrammarCompiler(byte_tokenizer(), 300, frozenset()).token_bytes() is None
