"""Thoughts between tags, before or among the rest of an answer."""

import re
from typing import NamedTuple

from rose.formats.parts import Parser, Thought
from rose.formats.reading import Reader, Reading

#: It is found in no text.
_ANYTHING = re.compile("(?!)")


class ThoughtFormat(NamedTuple):
    """How thoughts are written: OPEN ... CLOSE."""

    open: str
    close: str
    anywhere: bool = False
    """thoughts may follow text; else there is one, and nothing stands before it"""
    before: tuple[str, ...] = ()
    """tags that end a thought where `close` is forgotten, and belong to what follows"""
    margins: tuple[str, str] = ("", "")
    """what models write before and after `close`"""


class ThoughtParser(Reader):
    """Thoughts, and what another parser makes of everything else."""

    def __init__(self, form: ThoughtFormat, rest: Parser) -> None:
        self._form = form
        self._rest = rest
        super().__init__()

    def read(self) -> Reading[None]:
        form = self._form
        if form.anywhere:
            while (yield from self.until((form.open,), self._give)):
                yield from self._thought()
        else:
            space = yield from self.space()
            if (yield from self.at(form.open)):
                self.take(len(form.open))
                yield from self._thought()
            else:
                self._give(space)
            self._free = _ANYTHING, self._give
            while not self.ended:
                self._give(self.take(len(self.buffer)))
                yield
            self._give(self.buffer)
        self.parts += self._rest.finish(cut=self.cut)

    def _thought(self) -> Reading[None]:
        self.thinking = True
        yield from self.skip_space()
        tags = (self._form.close, *self._form.before)
        tag = yield from self.until(tags, lambda text: self.parts.append(Thought(text)))
        if not tag:
            return
        self.thinking = False
        if tag != self._form.close:
            self.buffer = tag + self.buffer
        yield from self.skip_space()

    def _give(self, text: str) -> None:
        if text:
            self.parts += self._rest.feed(text)
