"""Parsers as generators: each waits with `yield` where it needs more of the output.

What a parser has taken from `buffer` is settled; what is left there is read again with what comes
next. So the parts do not depend on where the output is cut.
"""

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import TypeVar

from rose.formats.parts import Part

WHITE_SPACE = " \t\r\n"
#: White space before a tag is not text; but so many characters at most are kept waiting for one.
MAX_HELD_SPACE = 64

T = TypeVar("T")
Reading = Generator[None, None, T]
Give = Callable[[str], object]


class Reader:
    """A parser whose `read` is one pass over the output."""

    def __init__(self) -> None:
        self.thinking = False
        self.buffer = ""
        self.ended = self.cut = False
        self.cut_in_tag = False
        """the output was cut off within a tag that was looked for"""
        self.parts: list[Part] = []
        self._free: tuple[re.Pattern[str], Give] | None = None
        """while a tag is looked for and nothing of one has come: text in which this is not found
        is given away as it is"""
        self.raw: list[str] | None = None
        """what was taken and may yet turn out to be text, if that is of interest"""
        self._reading = self.read()
        next(self._reading, None)

    def read(self) -> Reading[None]:
        """Reads until `ended`, and adds to `parts`."""
        raise NotImplementedError

    def feed(self, text: str) -> list[Part]:
        if not text:
            return []
        if self._free is None or self.raw is not None or self._free[0].search(text):
            self.buffer += text
            return self._made()
        self._free[1](text)
        made, self.parts = self.parts, []
        return made

    def finish(self, *, cut: bool) -> list[Part]:
        self.ended, self.cut = True, cut
        return self._made()

    def _made(self) -> list[Part]:
        next(self._reading, None)
        made, self.parts = self.parts, []
        return made

    def take(self, size: int) -> str:
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        if self.raw is not None:
            self.raw.append(taken)
        return taken

    def some(self) -> Reading[bool]:
        """Wait for a character. False at the end of the output."""
        while not self.buffer and not self.ended:
            yield
        return bool(self.buffer)

    def space(self) -> Reading[str]:
        """The white space that comes next, as far as it is held back."""
        while True:
            held = self.buffer[:MAX_HELD_SPACE]
            size = len(held) - len(held.lstrip(WHITE_SPACE))
            if size < len(self.buffer) or size == MAX_HELD_SPACE or self.ended:
                return self.take(size)
            yield

    def skip_space(self) -> Reading[None]:
        while True:
            self.take(len(self.buffer) - len(self.buffer.lstrip(WHITE_SPACE)))
            if self.buffer or self.ended:
                return
            yield

    def at(self, *tags: str) -> Reading[str]:
        """The first of `tags` that comes next, which is not taken; "" if none does."""
        while True:
            for tag in tags:
                if self.buffer.startswith(tag):
                    return tag
            if self.ended or not any(tag.startswith(self.buffer) for tag in tags):
                return ""
            yield

    def took(self, *tags: str) -> Reading[str]:
        """As `at`, and taken."""
        tag = yield from self.at(*tags)
        self.take(len(tag))
        return tag

    def word(self, *ends: str, limit: int = 256) -> Reading[str | None]:
        """The text before the first of `ends`, which is not taken; None if it is longer than
        `limit`, or the output ends before."""
        while True:
            match = pattern_of(ends).search(self.buffer)
            if match is not None and match.start() <= limit:
                return self.take(match.start())
            if match is not None or self.ended or len(self.buffer) > limit + max(map(len, ends)):
                return None
            yield

    def until(self, tags: tuple[str, ...], give: Give, *, space: str = WHITE_SPACE) -> Reading[str]:
        """Give the text before the first of `tags` away, without the white space that ends it, and
        take the tag. Returns it; "" at the end of the output. No tag may begin inside another.

        `space`: what counts as white space; "\\n" for a single line break.
        """
        while True:
            match = pattern_of(tags).search(self.buffer)
            if match is not None:
                start = _text_end(self.buffer, match.start(), space)
                if text := self.take(start):
                    give(text)
                self.take(match.end() - start)
                return match[0]
            end = len(self.buffer)
            size = overlap(self.buffer, tags)
            # A single character, such as "<", is rather text.
            self.cut_in_tag = self.ended and self.cut and size > 1
            if not self.ended or self.cut_in_tag:
                end = _text_end(self.buffer, end - size, space)
            if end:
                give(self.take(end))
            if self.ended:
                self.take(len(self.buffer))
                return ""
            if not self.buffer:
                self._free = beginning_of(tags), give
            yield
            self._free = None


@lru_cache(maxsize=256)
def beginning_of(tags: tuple[str, ...]) -> re.Pattern[str]:
    """What a tag, or white space before one, may begin with."""
    firsts = "|".join(sorted({re.escape(tag[:1]) for tag in tags}))
    return re.compile(rf"{firsts}|[{WHITE_SPACE}]\Z")


@lru_cache(maxsize=256)
def pattern_of(tags: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(tags, key=len, reverse=True))))


def _text_end(data: str, end: int, space: str) -> int:
    if space == WHITE_SPACE:
        return space_start(data, end)
    return end - 1 if space and data[:end].endswith(space) else end


def space_start(data: str, end: int) -> int:
    """Where the white space before `end` begins, as far as it is held back."""
    return max(len(data[:end].rstrip(WHITE_SPACE)), end - MAX_HELD_SPACE, 0)


def overlap(data: str, tags: tuple[str, ...]) -> int:
    """How many of the last characters may be the beginning of one of the tags."""
    longest = max(map(len, tags)) - 1
    tail = data[-longest:] if longest else ""
    if not any(tag[0] in tail for tag in tags):
        return 0
    for start in range(len(tail)):
        piece = tail[start:]
        if any(tag.startswith(piece) for tag in tags if len(tag) > len(piece)):
            return len(piece)
    return 0
