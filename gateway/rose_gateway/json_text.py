"""JSON that is written a million times: texts within templates that are made once."""

import json
import re
from typing import Any

# Lines end here for readers that follow Unicode; a line of an event stream must not.
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")
_ENCODE = json.encoder.encode_basestring
_ENCODE_ASCII = json.encoder.encode_basestring_ascii


def json_string(text: str) -> str:
    """A text as JSON has it, without anything that any reader takes for the end of a line."""
    if text.isascii() or not _LINE_ENDS.search(text):
        return _ENCODE(text)
    return _ENCODE_ASCII(text)


def compact(value: Any) -> str:
    """JSON without spaces; raises ValueError for what JSON cannot say."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text if text.isascii() or not _LINE_ENDS.search(text) else _escaped(text)


def _escaped(text: str) -> str:
    return _LINE_ENDS.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
