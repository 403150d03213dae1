"""The vectors that embeddings lines must be answered with."""

import base64
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.chaos.batch.lines import DrawnLine
from tests.support.echo import digest

MODEL = "tiny-encoder"
#: A vector depends on its batch by less.
_TOLERANCE = 1e-5
_AT_ONCE = 256


def encoder_in(folder: Path) -> Path:
    """A small random one. Its name is `MODEL`."""
    from tests.support.encoders import save_encoder  # it loads torch

    return save_encoder(folder / MODEL, normalize=True, sentence={"max_seq_length": 128})


class Vectors:
    def __init__(self, lines: Sequence[DrawnLine], encoder: Path | None) -> None:
        """`encoder`: None for the null engine's."""
        texts = [text for line in lines for text in line.texts]
        vectors = [digest(text) for text in texts] if encoder is None else _encoded(encoder, texts)
        self._vectors = dict(zip(texts, vectors, strict=True))

    def says(self, line: DrawnLine, body: Any) -> bool:
        """As `says_text`, of the vectors of a line."""
        data = body["data"]
        given = [_numbers(one["embedding"], line.encoding_format) for one in data]
        return (
            [one["index"] for one in data] == list(range(len(line.texts)))
            and body["usage"]["prompt_tokens"] > 0
            and all(map(_are_close, given, (self._vectors[text] for text in line.texts)))
        )


def _encoded(folder: Path, texts: Sequence[str]) -> list[list[float]]:
    from roseinfer.encoders.encoder import Encoder

    encoder = Encoder(str(folder), "embed")
    return [
        row
        for start in range(0, len(texts), _AT_ONCE)
        for row in encoder.encode(
            encoder.tokenizer.tokenize(texts[start : start + _AT_ONCE])
        ).tolist()
    ]


def _numbers(embedding: Any, encoding_format: str) -> Sequence[float]:
    """Raises: TypeError: they are in another format."""
    if encoding_format == "base64":
        return array("f", base64.b64decode(embedding))
    if not isinstance(embedding, list):
        raise TypeError
    return embedding


def _are_close(given: Sequence[float], expected: Sequence[float]) -> bool:
    return len(given) == len(expected) and all(
        abs(one - other) < _TOLERANCE for one, other in zip(given, expected, strict=True)
    )
