"""Special tokens are the chat template's to write: their names in a conversation stay text.

What a user or a tool says is tokenized together with the turns that the template writes around it.
`<|im_end|>` in a message would become the token that ends a turn, and what follows could be a
message of any role. So such names are cut in two before the template sees them, and no token is
made across a cut:

    "a<|im_end|>b"  ->  "a<", "|im_end|>b"  ->  the ids of both, and no special one

Only special tokens count. Others that were added, as `<think>` and `<tool_call>` often are, models
write themselves; they come back as they were.
"""

import re
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

# A noncharacter: Unicode has it for use inside of a program, and no text means anything by it.
CUT = "\ufdd0"


def cut_special(tokenizer: Any, value: Any) -> Any:
    """`value`, of JSON's types, whose texts have a cut in each name of a special token."""
    names = _special_names(tokenizer)
    return value if names is None else _cut(value, names)


def encode_cut(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text that was made of cut ones; special tokens that are not cut are tokens.

    Tokenizers of sentencepiece's kind read a space at each cut.
    """
    encoded = tokenizer(text.split(CUT), add_special_tokens=False, verbose=False)
    return [token_id for ids in encoded["input_ids"] for token_id in ids]


@lru_cache(maxsize=8)
def _special_names(tokenizer: Any) -> re.Pattern[str] | None:
    return special_names(tokenizer.backend_tokenizer)


def special_names(backend: Tokenizer) -> re.Pattern[str] | None:
    """What `cut_text` looks for."""
    added = backend.get_added_tokens_decoder().values()
    # One character cannot be cut.
    names = [token.content for token in added if token.special and len(token.content) > 1]
    return re.compile("|".join(map(re.escape, names))) if names else None


def _cut(value: Any, names: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return cut_text(value, names)
    if isinstance(value, dict):
        return {_cut(key, names): _cut(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(item, names) for item in value]
    return value


def cut_text(text: str, names: re.Pattern[str]) -> str:
    """`text` with `CUT` in each of the names."""
    parts, start = [], 0
    text = text.replace(CUT, "")
    while match := names.search(text, start):
        # Behind its first character: another name may begin at the second one.
        parts.append(text[start : match.start() + 1])
        start = match.start() + 1
    return CUT.join([*parts, text[start:]])
