"""The tokenizer of a checkpoint."""

from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer

from rose.errors import ModelNotFound, UnsupportedModel
from roseinfer.checkpoints.location import locate
from roseinfer.checkpoints.sources import resolve
from roseinfer.checkpoints.transformers_messages import first_line, quiet


def load_tokenizer(source: str) -> Any:
    """The fast tokenizer at `source`. Raises ModelNotFound or UnsupportedModel."""
    source = resolve(source)
    with locate(source) as location, quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                location.folder, trust_remote_code=False, **location.arguments
            )
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the tokenizers library is no Exception
            raise ModelNotFound(
                f"no tokenizer at {source!r}: {first_line(error)}; "
                "name one with tokenizer_name (`rose worker --tokenizer`)"
            ) from error
    if not tokenizer.is_fast:
        raise UnsupportedModel(
            f"the tokenizer at {source!r} is not a fast one: the engine needs a tokenizer.json"
        )
    _check_reads_text(source, tokenizer)
    return tokenizer


def _check_reads_text(source: str, tokenizer: Any) -> None:
    """Some wrong values are read when a text is. Raises UnsupportedModel."""
    try:
        tokenizer.encode("Hello", verbose=False)
    except Exception as error:
        raise UnsupportedModel(
            f"the tokenizer at {source!r} reads no text ({first_line(error)}): mend tokenizer.json "
            "and tokenizer_config.json"
        ) from error
