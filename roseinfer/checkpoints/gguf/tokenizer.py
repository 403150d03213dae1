"""The tokenizer of a GGUF file: how it cuts text before merges, as llama.cpp's names mean it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers.integrations.gguf import gguf_tokenizer_mapping as mapping
from transformers.integrations.gguf.reader import read_gguf_metadata

from roseinfer.checkpoints.gguf.encoder_tokenizer import KINDS
from roseinfer.checkpoints.gguf.header import Header
from roseinfer.checkpoints.gguf.metadata import check_tokenizer_keys, refused
from roseinfer.patching import patched

_CONTROL, _USER_DEFINED = 3, 4
_GEMMA4 = "gemma4"
_SPACE = "\u2581"

#: GPT-2's expression, which the library has built in.
_GPT2 = (
    *("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"),
    *("gigachat", "a.x-4.0", "mellum"),
)
#: The same after each digit was cut off.
_DIGITS = (
    *("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    "mellum2",
)
#: Names for what transformers knows by another one.
_LIKE = {"stablelm2": "qwen2", "hunyuan": "qwen2", "solar-open": "qwen2", "grok-2": "qwen2"}
_LIKE |= {"glm4": "llama3", "chatglm-bpe": "llama3"}


def is_of_encoder(header: Header) -> bool:
    """Whether it is of a kind that only encoders have: see encoder_tokenizer.py."""
    return header.metadata.get("tokenizer.ggml.model") in KINDS


@contextmanager
def of_known_families() -> Iterator[None]:
    """While it lasts, transformers makes EmbeddingGemma's as Gemma 3's, which it does not know."""
    builders = mapping.GGUF_SENTENCEPIECE_BUILDERS
    known = {**builders, "gemma-embedding": builders["gemma3"]}
    with patched(mapping, "GGUF_SENTENCEPIECE_BUILDERS", known):
        yield


def add_ends(header: Header, tokenizer: Any) -> None:
    """The tokens that a file wants before and behind a text that is not to be gone on with."""
    ends = {
        name: header.metadata.get(f"tokenizer.ggml.{name}_token_id")
        for name in ("bos", "eos")
        if header.metadata.get(f"tokenizer.ggml.add_{name}_token")
    }
    tokens = {name: tokenizer.convert_ids_to_tokens(number) for name, number in ends.items()}
    before, behind = (tokens.get(name, "") for name in ("bos", "eos"))
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{before} $A {behind}".strip(),
        special_tokens=[(tokens[name], number) for name, number in ends.items()],
    )


def complete_tokenizer(path: Path, header: Header, tokenizer: Any) -> None:
    """Give transformers' tokenizer what it leaves out of the file.

    Raises UnsupportedModel for what cannot be given.
    """
    check_tokenizer_keys(header)
    backend = tokenizer.backend_tokenizer
    model = header.metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        backend.pre_tokenizer = _pre_tokenizer(header)
    elif model == _GEMMA4:
        _check_gemma4(header)
    elif model == "llama" and header.architecture != _GEMMA4:
        _complete_sentencepiece(header, backend)
    else:
        kinds = "gpt2, llama and, of Gemma 4, gemma4 are read"
        raise refused(header, "tokenizer.ggml.model", model, kinds)
    _check_tokens(path, header, backend)


def _pre_tokenizer(header: Header) -> Any:
    key = "tokenizer.ggml.pre"
    name = header.metadata.get(key, "default")
    if header.metadata.get("tokenizer.ggml.add_space_prefix"):
        raise refused(header, "tokenizer.ggml.add_space_prefix", True, "this kind adds none")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in _GPT2:
        return byte_level
    if name in _DIGITS:
        return pre_tokenizers.Sequence([_isolated(r"\p{N}"), byte_level])
    if name == "default":
        digits = [_isolated(r"\p{N}+"), _isolated("[0-9][0-9][0-9]")]
        marks = _isolated(r"[\p{P}\$\+<=>\^~\|]+")
        # The splits see text: bytes come last.
        words = _isolated(_GPT2_WORDS)
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([marks, words, *digits, plain])
    if name in ("deepseek-v3", "hunyuan-dense"):
        splits = [_isolated(expression) for expression in _DEEPSEEK3]
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, plain])
    split = mapping.GGUF_PRE_TOKENIZER_SPLITS.get(_LIKE.get(name, name))
    if split is None:
        raise refused(header, key, name, "how that cuts text is not known here")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([_isolated(split), plain])


_GPT2_WORDS = r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

#: Digits, then ideographs and kana, then words, with a mark before them, and marks.
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)


def _isolated(expression: str) -> Any:
    return pre_tokenizers.Split(Regex(expression), behavior="isolated")


def _complete_sentencepiece(header: Header, backend: Any) -> None:
    """A space goes before the text and after each special token, unless the file says otherwise."""
    key = "tokenizer.ggml.add_space_prefix"
    prefix = header.metadata.get(key, True)
    if header.architecture.startswith("gemma"):
        if prefix:
            raise refused(header, key, header.metadata.get(key), "Gemma's tokenizers add none")
        return
    spaces = normalizers.Replace(" ", _SPACE)
    before = [normalizers.Prepend(_SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*before, spaces])
    backend.pre_tokenizer = None
    after = [decoders.Strip(" ", 1, 0)] if prefix else []
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    backend.decoder = decoders.Sequence(steps)


def _check_gemma4(header: Header) -> None:
    """transformers makes it as the model's own is: merges of characters, spaces written as one of
    them, and no other cuts."""
    for name, own in (("pre", _GEMMA4), ("add_space_prefix", False)):
        key = f"tokenizer.ggml.{name}"
        if (value := header.metadata.get(key, own)) != own:
            raise refused(header, key, value, f"Gemma 4's tokenizer has {own!r}")
    if "tokenizer.ggml.merges" not in header.counts:
        raise refused(header, "tokenizer.ggml.merges", None, "Gemma 4's tokenizer has some")


def _check_tokens(path: Path, header: Header, backend: Any) -> None:
    """Raises UnsupportedModel if a token that stands for itself is not one token."""
    metadata, _ = read_gguf_metadata(str(path), ("tokenizer.ggml.tokens",))
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    types = metadata.get("tokenizer.ggml.token_type") or ()
    named = {
        header.metadata.get(f"tokenizer.ggml.{name}_token_id")
        for name in ("bos", "eos", "eot", "eom", "unknown", "padding")
    }
    for number, token in enumerate(tokens):
        special = number < len(types) and types[number] in (_CONTROL, _USER_DEFINED)
        if (special or number in named) and backend.token_to_id(token) != number:
            raise refused(
                header,
                "tokenizer.ggml.tokens",
                token,
                f"as token {number} it is not one that the tokenizer keeps whole",
            )
