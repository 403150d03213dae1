"""From prompts to token ids, and the bytes that a token can stand for."""

import json
from typing import Any

from rose.errors import InvalidParameter
from rose.validation import lone_surrogate

# Byte-level vocabularies write each byte as one printable character.
_BYTE_ALPHABET_SIZE = 256


def encode(tokenizer: Any | None, text: str) -> list[int]:
    """Token ids of a plain prompt, with the special tokens the tokenizer adds by itself.

    Raises InvalidParameter for text that is no Unicode or that the tokenizer has no tokens for, and
    without a tokenizer.
    """
    if (where := lone_surrogate(text)) is not None:
        raise InvalidParameter(f"prompt: {where}", param="prompt")
    tokenizer = require_tokenizer(tokenizer)
    try:
        ids: list[int] = tokenizer.encode(text, verbose=False)
    except Exception as error:  # the tokenizers library has no other
        raise InvalidParameter(
            f"the tokenizer cannot read the prompt: {error}", param="prompt"
        ) from error
    return ids


def require_tokenizer(tokenizer: Any | None) -> Any:
    if tokenizer is None:
        raise InvalidParameter(
            "this engine has no tokenizer: give token ids instead of text", param="prompt"
        )
    return tokenizer


def max_bytes_per_token(tokenizer: Any | None) -> int | None:
    """The most UTF-8 bytes of a prompt that one token can stand for, or None if unknown.

    It is certain for byte-level vocabularies that drop, rewrite and absorb nothing. With it, a
    text of more than `max_bytes_per_token * n` bytes is known to need more than n tokens without
    tokenizing it.
    """
    if tokenizer is None:
        return None
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    if spec["normalizer"] is not None or spec["model"].get("type") != "BPE":
        return None
    if not _keeps_every_byte(spec["pre_tokenizer"]):
        return None
    added = spec["added_tokens"]
    if any(token["lstrip"] or token["rstrip"] for token in added):
        return None
    names = {token["content"] for token in added}
    ordinary = [token for token in spec["model"]["vocab"] if token not in names]
    if sum(len(token) == 1 for token in ordinary) < _BYTE_ALPHABET_SIZE:
        return None
    sizes = [len(token) for token in ordinary] + [len(name.encode()) for name in names]
    return max(sizes)


def _keeps_every_byte(pre_tokenizer: dict[str, Any] | None) -> bool:
    """True for a pre-tokenizer that maps text to the byte alphabet and discards nothing."""
    if pre_tokenizer is None:
        return False
    if pre_tokenizer["type"] == "Sequence":
        steps = pre_tokenizer["pretokenizers"]
    else:
        steps = [pre_tokenizer]
    kept = {"ByteLevel", "Digits", "Split"}
    return (
        any(step["type"] == "ByteLevel" for step in steps)
        and all(step["type"] in kept for step in steps)
        and all(step.get("behavior") != "Removed" for step in steps)
    )
