"""Parsers as generators: each waits with `yield` where it needs more of the output.

What a parser has taken from `self.buffer` is settled; what is left there is read again with what
comes next. So the parts do not depend on where the output is cut.
"""

import re
from collections.abc import Callable, Generator
from functools import lru_cache

from rose.formats.parts import Part

WHITE_SPACE = " \t\r\n"
#: White space before a tag is not text; but so many characters at most are kept waiting for one.
MAX_HELD_SPACE = 64

Reading = Generator[None, None, None]


class Reader:
    """A parser whose `read` is one pass over the output."""

    def __init__(self) -> None:
        self.thinking = False
        self.buffer = ""
        self.ended = self.cut = False
        self.parts: list[Part] = []
        self._reading = self.read()
        next(self._reading, None)

    def read(self) -> Reading:
        """Reads until `ended`, and adds to `parts`."""
        raise NotImplementedError

    def feed(self, text: str) -> list[Part]:
        if not text:
            return []
        self.buffer += text
        return self._made()

    def finish(self, *, cut: bool) -> list[Part]:
        self.ended, self.cut = True, cut
        return self._made()

    def _made(self) -> list[Part]:
        next(self._reading, None)
        made, self.parts = self.parts, []
        return made

    def take(self, size: int) -> str:
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken

    def space(self) -> Generator[None, None, str]:
        """The white space that comes next, as far as it is held back."""
        while True:
            held = self.buffer[:MAX_HELD_SPACE]
            size = len(held) - len(held.lstrip(WHITE_SPACE))
            if size < len(self.buffer) or size == MAX_HELD_SPACE or self.ended:
                return self.take(size)
            yield

    def skip_space(self) -> Reading:
        while True:
            self.buffer = self.buffer.lstrip(WHITE_SPACE)
            if self.buffer or self.ended:
                return
            yield

    def at(self, *tags: str) -> Generator[None, None, str]:
        """The first of `tags` that comes next, which is not taken; "" if none does."""
        while True:
            for tag in tags:
                if self.buffer.startswith(tag):
                    return tag
            if self.ended or not any(tag.startswith(self.buffer) for tag in tags):
                return ""
            yield

    def until(
        self, tags: tuple[str, ...], give: Callable[[str], object]
    ) -> Generator[None, None, str]:
        """Give the text before the first of `tags` away, without the white space that ends it, and
        take the tag. Returns it; "" at the end of the output. No tag may begin inside another."""
        while True:
            match = pattern_of(tags).search(self.buffer)
            if match is not None:
                if text := self.buffer[: space_start(self.buffer, match.start())]:
                    give(text)
                self.buffer = self.buffer[match.end() :]
                return match[0]
            end = len(self.buffer)
            if not self.ended:
                end = space_start(self.buffer, end - overlap(self.buffer, tags))
            if end:
                give(self.take(end))
            if self.ended:
                return ""
            yield


@lru_cache(maxsize=256)
def pattern_of(tags: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(tags, key=len, reverse=True))))


def space_start(data: str, end: int) -> int:
    """Where the white space before `end` begins, as far as it is held back."""
    return max(len(data[:end].rstrip(WHITE_SPACE)), end - MAX_HELD_SPACE)


def overlap(data: str, tags: tuple[str, ...]) -> int:
    """How many of the last characters may be the beginning of one of the tags."""
    longest = max(map(len, tags)) - 1
    tail = data[-longest:] if longest else ""
    for start in range(len(tail)):
        piece = tail[start:]
        if any(tag.startswith(piece) for tag in tags if len(tag) > len(piece)):
            return len(piece)
    return 0
