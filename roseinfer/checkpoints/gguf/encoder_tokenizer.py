"""Tokenizers of encoders in a GGUF file, which transformers does not make of one."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast
from transformers.integrations.gguf.reader import read_gguf_metadata

from roseinfer.checkpoints.gguf.header import Header
from roseinfer.checkpoints.gguf.metadata import check_tokenizer_keys, refused

#: By llama.cpp's name for their kind.
KINDS = ("bert", "t5")

_KEY = "tokenizer.ggml."
_SPACE = "\u2581"
_CONTROL = 3
#: What llama.cpp takes where a file does not say.
_USUAL = {
    "bert": {"cls": 101, "sep": 102, "unk": 100, "pad": 0},
    "t5": {"cls": 0, "sep": 2, "unk": 3, "pad": 1},
}
#: The names that keys have for them, later ones first.
_NAMES = {
    "cls": ("cls", "bos"),
    "sep": ("separator", "seperator", "eos"),
    "unk": ("unknown",),
    "pad": ("padding",),
}


def make_tokenizer(path: Path, header: Header) -> PreTrainedTokenizerFast:
    """Raises: UnsupportedModel"""
    check_tokenizer_keys(header, encoder=True)
    wanted = [f"{_KEY}{name}" for name in ("tokens", "token_type", "scores")]
    lists, _ = read_gguf_metadata(str(path), (*wanted, f"{_KEY}precompiled_charsmap"))
    tokens = [str(token) for token in lists.get(wanted[0], ())]
    kind = header.metadata[f"{_KEY}model"]
    special = {name: _special(header, kind, name, tokens) for name in _NAMES}
    types = lists.get(wanted[1]) or [0] * len(tokens)
    controls = {token for token, own in zip(tokens, types, strict=True) if own == _CONTROL}
    controls |= {*special.values()}
    if kind == "bert":
        own = _wordpiece(header, tokens, controls, special["unk"])
    else:
        own = _unigram(header, lists, tokens, special["unk"])
    own.add_special_tokens(sorted(controls, key=tokens.index))
    begin, end = special["cls"], special["sep"]
    between = f"{end} {end}" if kind == "t5" else end  # as XLM-R's, and BERT's
    own.post_processor = TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {between} $B {end}",
        special_tokens=[(special[name], tokens.index(special[name])) for name in ("cls", "sep")],
    )
    named = {f"{name}_token": token for name, token in special.items()}
    return PreTrainedTokenizerFast(tokenizer_object=own, **named)


def _special(header: Header, kind: str, name: str, tokens: list[str]) -> str:
    keys = [f"{_KEY}{spelling}_token_id" for spelling in _NAMES[name]]
    key = next((key for key in keys if key in header.metadata), keys[0])
    number = header.metadata.get(key, _USUAL[kind][name])
    if not (type(number) is int and 0 <= number < len(tokens)):
        raise refused(header, key, number, f"the ids of its tokens run from 0 to {len(tokens) - 1}")
    return tokens[number]


def _wordpiece(
    header: Header, tokens: list[str], controls: Collection[str], unknown: str
) -> Tokenizer:
    """In the file what begins a word has a mark; here what goes on with one has."""
    words = {
        token if token in controls else _with_mark(token): number
        for number, token in enumerate(tokens)
    }
    own = Tokenizer(models.WordPiece(words, unk_token=unknown))
    lower = bool(header.metadata.get(f"{_KEY}normalizer.lowercase", True))
    strip = bool(header.metadata.get(f"{_KEY}normalizer.strip_accents", lower))
    own.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=strip)
    own.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    own.decoder = decoders.WordPiece()
    return own


def _with_mark(token: str) -> str:
    if token.startswith(_SPACE):
        return token.removeprefix(_SPACE)
    return f"##{token}"


def _unigram(header: Header, lists: Any, tokens: list[str], unknown: str) -> Tokenizer:
    scores = [float(score) for score in lists.get(f"{_KEY}scores") or [0.0] * len(tokens)]
    own = Tokenizer(models.Unigram(list(zip(tokens, scores, strict=True)), tokens.index(unknown)))
    steps: list[Any] = []
    if charsmap := lists.get(f"{_KEY}precompiled_charsmap"):
        steps.append(normalizers.Precompiled(bytes(charsmap)))
    if header.metadata.get(f"{_KEY}remove_extra_whitespaces", True):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    own.normalizer = normalizers.Sequence(steps)
    begins = bool(header.metadata.get(f"{_KEY}add_space_prefix", True))
    scheme = "always" if begins else "never"
    own.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    own.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    return own
