"""A tokenizer gives the ids and the texts of its tokenizer.json, whatever its class is called."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers import models as kinds
from tokenizers.processors import ByteLevel, TemplateProcessing
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordLevelTrainer, WordPieceTrainer

from rose.errors import ModelNotFound, UnsupportedModel
from roseinfer.checkpoints.tokenizer import load_tokenizer
from roseinfer.text.detokenizer import Detokenizer
from roseinfer.text.tokenization import encode

SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]
ADDED = [
    AddedToken("<|user|>", special=True, normalized=False),
    AddedToken("<|end|>", special=True, normalized=False, rstrip=True),
    AddedToken("<sep>", special=False, normalized=True, lstrip=True),
    AddedToken("<tool>", special=False, normalized=False),
]
TEXTS = [
    "Hello world",
    " Hello  world ",
    "  two before, three after   ",
    "1234567 89 3.14",
    "\u00dcn\u00efc\u00f6d\u00e9",  # composed
    "U\u0308ni\u0308 e\u0301",  # and not
    "\u6f22\u5b57\u304b\u306a \ud55c\uad6d\uc5b4",
    "\U0001f600 x \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "a\n\n b\tc\r\n",
    "don't I'LL we've",
    "   ",
    "",
    "\n",
    "def f(x):\n    return x**2  # why\n",
    "\ufb01 \u212b \u2460 \u00bd",  # other forms in NFKC
    "word<sep>word <sep> word",
    "<tool>x <tool> y",
    "<|user|>hi<|end|> there <|user|> x",
    "</s> hi <s>Hello",
    "\u2581a \u2581 b",
]
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BEGINS = TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
_ENDS = TemplateProcessing(
    single="<s> $A </s>", pair="<s> $A </s> $B", special_tokens=[("<s>", 1), ("</s>", 2)]
)


def _train(tokenizer: Tokenizer, trainer: Any = BpeTrainer, **options: Any) -> Tokenizer:
    own = trainer(special_tokens=SPECIAL, show_progress=False, **{"vocab_size": 330, **options})
    tokenizer.train_from_iterator(TEXTS * 3, own)
    return tokenizer


def _bytes(*before: Any, prefix: bool = False, regex: bool = True, post: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(kinds.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _train(tokenizer, initial_alphabet=alphabet)
    if post is not None:
        tokenizer.post_processor = post
    return tokenizer


def _normalized(tokenizer: Tokenizer, normalizer: Any) -> Tokenizer:
    tokenizer.normalizer = normalizer
    return tokenizer


def _split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


@functools.cache
def _pieces() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """As sentencepiece has them: with a token for each byte."""
    base = Tokenizer(kinds.BPE(unk_token="<unk>"))
    base.normalizer = normalizers.Replace(" ", "\u2581")
    _train(base, vocab_size=150, limit_alphabet=50)
    model = json.loads(base.to_str())["model"]
    learnt = sorted(model["vocab"], key=model["vocab"].get)
    named = [f"<0x{byte:02X}>" for byte in range(256)]
    order = SPECIAL + named + [token for token in learnt if token not in SPECIAL]
    return {token: index for index, token in enumerate(order)}, [
        (left, right) for left, right in model["merges"]
    ]


def _sentencepiece(
    normalizer: Any = None, pre: Any = None, strip: bool = True, post: Any = _BEGINS
) -> Tokenizer:
    vocab, merges = _pieces()
    model = kinds.BPE(
        vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * strip)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL])
    if post is not None:
        tokenizer.post_processor = post
    return tokenizer


def _legacy() -> Any:
    return normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])


def _metaspace(scheme: str, split: bool = False) -> Any:
    return pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)


def _unigram(scheme: str) -> Tokenizer:
    tokenizer = Tokenizer(kinds.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = _metaspace(scheme, split=True)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return _train(tokenizer, UnigramTrainer, unk_token="<unk>", vocab_size=200)


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(kinds.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _train(tokenizer, WordPieceTrainer)


def _words() -> Tokenizer:
    tokenizer = Tokenizer(kinds.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return _train(tokenizer, WordLevelTrainer)


def _suffixes() -> Tokenizer:
    tokenizer = Tokenizer(kinds.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    return _train(tokenizer, end_of_word_suffix="</w>")


def _digits() -> Any:
    return pre_tokenizers.Digits(individual_digits=True)


#: The tokenizer, and the class that such checkpoints name.
KINDS: dict[str, tuple[Callable[[], Tokenizer], str | None]] = {
    "gpt2": (_bytes, "GPT2Tokenizer"),
    "gpt2 with a space before": (lambda: _bytes(prefix=True), "GPT2TokenizerFast"),
    "llama 2": (lambda: _sentencepiece(_legacy()), "LlamaTokenizer"),
    "tinyllama": (lambda: _sentencepiece(_legacy()), "LlamaTokenizerFast"),
    "adds an end": (lambda: _sentencepiece(_legacy(), post=_ENDS), "LlamaTokenizer"),
    "adds nothing": (lambda: _sentencepiece(_legacy(), post=None), "LlamaTokenizer"),
    "llama 3": (lambda: _bytes(_split(_LLAMA_3), regex=False, post=_BEGINS), None),
    "llama 3 as llama 2": (
        lambda: _bytes(_split(_LLAMA_3), regex=False, post=_BEGINS),
        "LlamaTokenizerFast",
    ),
    "qwen": (
        lambda: _normalized(_bytes(_split(r"\p{N}"), post=ByteLevel()), normalizers.NFC()),
        "Qwen2Tokenizer",
    ),
    "yi": (lambda: _sentencepiece(normalizers.Replace(" ", "\u2581")), "LlamaTokenizer"),
    "gemma": (
        lambda: _sentencepiece(normalizers.Replace(" ", "\u2581"), strip=False),
        "GemmaTokenizer",
    ),
    "mistral": (lambda: _sentencepiece(pre=_metaspace("first")), "LlamaTokenizer"),
    "phi 3": (lambda: _sentencepiece(_legacy()), "LlamaTokenizer"),
    "metaspace": (lambda: _sentencepiece(pre=_metaspace("always", split=True)), "T5Tokenizer"),
    "metaspace without a space": (lambda: _sentencepiece(pre=_metaspace("never")), None),
    "unigram": (lambda: _unigram("always"), "XLMRobertaTokenizer"),
    "unigram without a space": (lambda: _unigram("never"), "LlamaTokenizerFast"),
    "wordpiece": (_wordpiece, "BertTokenizer"),
    "words": (_words, "GPT2Tokenizer"),
    "suffixes": (_suffixes, "OpenAIGPTTokenizer"),
    "starcoder 2": (lambda: _bytes(_digits()), "GPT2Tokenizer"),
    "exaone": (lambda: _normalized(_bytes(_digits()), normalizers.NFC()), "GPT2Tokenizer"),
    "deepseek": (
        lambda: _bytes(_split(r"[\r\n]"), _split(r"\s?\p{L}+"), _digits(), post=_BEGINS),
        "LlamaTokenizerFast",
    ),
    "phi 2": (_bytes, "CodeGenTokenizer"),
    "neox": (_bytes, "GPTNeoXTokenizer"),
}
#: The classes that any of them may be said to have.
CLASSES = [None, "PreTrainedTokenizerFast", "LlamaTokenizer", "Qwen2Tokenizer", "FooTokenizer"]


@functools.cache
def stored(kind: str) -> str:
    tokenizer = KINDS[kind][0]()
    for token in ADDED:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    text: str = tokenizer.to_str()
    return text


def write(folder: Path, tokenizer: str, name: str | None, **config: Any) -> str:
    folder.mkdir(exist_ok=True)
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    said = {**named, **({"tokenizer_class": name} if name else {}), **config}
    (folder / "tokenizer.json").write_text(tokenizer)
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return str(folder)


def check_equal(loaded: Any, tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert encode(loaded, text) == ids, text
        bare = tokenizer.encode(text, add_special_tokens=False).ids
        assert loaded(text, add_special_tokens=False)["input_ids"] == bare, text
        for skip in (True, False):
            said = loaded.backend_tokenizer.decode(ids, skip_special_tokens=skip)
            assert said == tokenizer.decode(ids, skip_special_tokens=skip), text


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_texts_are_those_of_the_file(tmp_path: Path, kind: str) -> None:
    # given
    whole, own = stored(kind), KINDS[kind][1]
    tokenizer = Tokenizer.from_str(whole)
    for name in {own, *CLASSES}:
        # when
        loaded = load_tokenizer(write(tmp_path, whole, name, legacy=True))
        # then
        check_equal(loaded, tokenizer)
        assert (loaded.bos_token_id, loaded.eos_token_id) == (1, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_of_text_is_the_whole_text(tmp_path: Path, kind: str) -> None:
    # given
    backend = load_tokenizer(write(tmp_path, stored(kind), None)).backend_tokenizer
    start = backend.encode("Once", add_special_tokens=False).ids
    shown = backend.decode(start, skip_special_tokens=True)
    for text in TEXTS:
        ids = backend.encode(text, add_special_tokens=False).ids
        # when
        stream = Detokenizer(backend).stream(start)
        streamed = "".join(map(stream.push, ids)) + stream.finish()
        # then
        whole = backend.decode(start + ids, skip_special_tokens=True)
        assert shown + streamed == whole, text


def test_the_file_s_padding_and_truncation_are_not_of_prompts(tmp_path: Path) -> None:
    # given
    tokenizer = Tokenizer.from_str(stored("llama 3"))
    whole = [tokenizer.encode(text).ids for text in TEXTS]
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64, pad_id=3, pad_token="<pad>")
    # when
    loaded = load_tokenizer(write(tmp_path, tokenizer.to_str(), None))
    # then
    assert [encode(loaded, text) for text in TEXTS] == whole
    assert [loaded.backend_tokenizer.encode(text).ids for text in TEXTS] == whole


@pytest.mark.parametrize(
    "config",
    [
        {"split_special_tokens": True},
        {"add_prefix_space": True, "add_bos_token": False, "do_lower_case": True},
        {"added_tokens_decoder": {"1": {"content": "<s>", "lstrip": True, "rstrip": True}}},
        {"chat_template": "{{ bos_token }}", "mask_token": "[MASK]", "pad_token": None},
    ],
)
def test_no_field_of_the_configuration_changes_ids(tmp_path: Path, config: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_str(stored("llama 2"))
    loaded = load_tokenizer(write(tmp_path, tokenizer.to_str(), "LlamaTokenizer", **config))
    check_equal(loaded, tokenizer)
    assert loaded.chat_template == config.get("chat_template")
    assert loaded.mask_token is None


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": {"5": {"content": "<|user|>"}}},
        {"added_tokens_decoder": {"900": {"content": "<|other|>"}}},
        {"additional_special_tokens": ["<|other|>"]},
    ],
)
def test_a_configuration_that_contradicts_the_file_is_refused(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedModel, match=r"contradicts itself: '<\|(user|other)\|>'"):
        load_tokenizer(write(tmp_path, stored("llama 3"), None, **config))


@pytest.mark.parametrize(("kind", "name"), [("gpt2", "GPT2Tokenizer"), ("qwen", "Qwen2Tokenizer")])
def test_bytes_are_read_without_tokenizer_json(tmp_path: Path, kind: str, name: str) -> None:
    # given: the files of the model alone
    folder = write(tmp_path, stored(kind), name)
    tokenizer = Tokenizer.from_str(stored(kind))
    tokenizer.model.save(folder)
    (tmp_path / "tokenizer.json").unlink()
    # when
    loaded = load_tokenizer(folder)
    # then
    for text in TEXTS[:4]:
        assert encode(loaded, text) == tokenizer.encode(text).ids, text


@pytest.mark.parametrize("kind", ["gpt2", "llama 2", "unigram", "wordpiece"])
@pytest.mark.parametrize("name", [None, "LlamaTokenizer"])
def test_nothing_else_is_read_without_tokenizer_json(
    tmp_path: Path, kind: str, name: str | None
) -> None:
    folder = write(tmp_path, stored(kind), name)
    Tokenizer.from_str(stored(kind)).model.save(folder)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises((UnsupportedModel, ModelNotFound), match=r"^(?!.*\n).*no tokenizer"):
        load_tokenizer(folder)
