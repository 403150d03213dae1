"""The text that a decoder reads of a query and a document, or of a text that it embeds.

Rerankers that are decoders have a chat template which writes messages of the roles query and
document, and of system for an instruction; of some embedders it writes the text as the user's
message, and the prompt as the system's. It is rendered once, at load: what it writes around the
texts is then known, and no request runs a template.
"""

import re
from collections.abc import Mapping
from typing import Any

from rose.errors import UnsupportedModel

#: Text before, between and behind the names of the texts that stand there.
InputFormat = tuple[str, ...]

# Noncharacters, which no template has, in spaces that a template may strip.
_STAND_INS = {"query": " \ufdd1 ", "document": " \ufdd2 ", "text": " \ufdd3 "}
_NAMES = {text: name for name, text in _STAND_INS.items()}
_PLACES = re.compile(f"({'|'.join(map(re.escape, _NAMES))})")

#: Names of texts by the roles of the messages that they are.
PAIR = {"query": "query", "document": "document"}
TEXT = {"user": "text"}

#: Of Qwen3-Reranker, whose first checkpoints have it in their model card alone.
_QWEN3_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
_QWEN3_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_QWEN3_TOKENS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")


def of_template(
    tokenizer: Any,
    roles: Mapping[str, str],
    instruction: str | None,
    layout: str | None,
    variables: Mapping[str, Any],
) -> InputFormat | None:
    """None where the chat template has no place for all texts. `roles`: PAIR or TEXT. `layout`:
    flat or structured, as the content of messages is; None: the first of them that the template
    reads. Raises: UnsupportedModel: it changes a text."""
    texts = {role: _STAND_INS[name] for role, name in roles.items()}
    texts = {"system": instruction, **texts} if instruction else texts
    for own in (layout,) if layout else ("flat", "structured"):
        messages = [{"role": role, "content": _content(text, own)} for role, text in texts.items()]
        try:
            written = tokenizer.apply_chat_template(messages, tokenize=False, **variables)
        except Exception:  # noqa: BLE001, S112 - a template raises what it likes
            continue
        if (input_format := _divided(written, set(roles.values()))) is not None:
            return input_format
    return None


def of_qwen3_reranker(tokenizer: Any, instruction: str | None) -> InputFormat | None:
    """As its model card has it. None where the tokenizer has not its tokens."""
    backend = tokenizer.backend_tokenizer
    if any(backend.token_to_id(token) is None for token in _QWEN3_TOKENS):
        return None
    return (
        f"<|im_start|>system\n{_QWEN3_SYSTEM}<|im_end|>\n<|im_start|>user\n"
        f"<Instruct>: {instruction or _QWEN3_INSTRUCTION}\n<Query>: ",
        "query",
        "\n<Document>: ",
        "document",
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    )


def _content(text: str, layout: str) -> str | list[dict[str, str]]:
    return [{"type": "text", "text": text}] if layout == "structured" else text


def _divided(written: str, names: set[str]) -> InputFormat | None:
    """Raises: UnsupportedModel"""
    parts = [_NAMES.get(part, part) for part in _PLACES.split(written)]
    if set(parts[1::2]) == names:
        return tuple(parts)
    if all(_STAND_INS[name].strip() in written for name in names):
        raise UnsupportedModel(
            f"its chat template changes a {' and a '.join(sorted(names, reverse=True))}: let it "
            "write texts as they are"
        )
    return None
