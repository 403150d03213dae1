"""Grammars that hold from a trigger on, up to their own end; the text between is free.

A trigger is a tag with which a call begins, or, with ^ before it, the beginning of the text:

    I look. <tool_call>{"name": ...}</tool_call> And       free | followed        | free
    {"name": "weather", "parameters": ...}                 followed from the first token on
    {"place": "Oslo"}                                      followed up to "p, which is no trigger

Free text costs no mask, and of most tokens it is known that no trigger begins in them. A token that
completes a trigger and goes on in a way that the grammar forbids may not come: there are few of
them, which are banned. At the beginning of the text, where
the grammar allows other text too, it is followed until it is certain whether a trigger comes.

All of that is a function of the text, so a request that goes on elsewhere follows it as before.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Sequence

import torch

from roseinfer.logits_processors.grammars import GrammarCompiler
from roseinfer.logits_processors.matcher import Matcher

_NONE: array[int] = array("q")
_NOT_IDLE: set[int] = set()
_WHITE_SPACE = b" \t\r\n"


class Vocabulary:
    """The tokens, and their texts as the text of a request has them."""

    def __init__(self, grammars: GrammarCompiler, shown: Collection[str]) -> None:
        """`shown`: special tokens whose names are text. After a grammar was compiled."""
        self.tokens_of = grammars.tokens_of
        self.texts = grammars.texts
        special = grammars.special
        self._hidden = frozenset(i for name, i in special.items() if name not in shown)
        bits = torch.zeros(-(-grammars.mask_size // 32) * 32, dtype=torch.uint8)
        bits[list(special.values())] = 1
        octets = (bits.view(-1, 8) << torch.arange(8, dtype=torch.uint8)).sum(1)
        self.special = octets.to(torch.uint8).view(torch.int32)
        """a mask of special tokens, as matchers have it"""

    def text_of(self, token_id: int) -> bytes:
        texts = self.texts.texts
        return b"" if token_id in self._hidden or token_id >= len(texts) else texts[token_id]


class _Tags:
    """Texts that are looked for in a text as it comes.

    `idle` are tokens which neither hold one of them nor end with the beginning of one. They become
    known as they come.
    """

    def __init__(self, tags: Iterable[bytes]) -> None:
        self.tags = tuple(tags)
        self.idle: set[int] = set()
        self._firsts = {tag[0] for tag in self.tags}
        self._longest = max(map(len, self.tags), default=0)

    def first(self, text: bytes) -> tuple[bytes, int]:
        """The tag that comes first in it, and where; -1 if there is none."""
        found = [(index, tag) for tag in self.tags if (index := text.find(tag)) >= 0]
        if not found:
            return b"", -1
        index, tag = min(found, key=lambda pair: (pair[0], -len(pair[1])))
        return tag, index

    def overlap(self, text: bytes) -> bytes:
        """The end of it that a tag may begin with."""
        end = text[-self._longest :]
        for start, first in enumerate(end):
            if first in self._firsts:
                rest = end[start:]
                if any(len(rest) < len(one) and one.startswith(rest) for one in self.tags):
                    return rest
        return b""


class LazyGrammar:
    """A compiled grammar, its triggers, and the tags of thoughts, in which no trigger counts.

    Requests share it; threads may too.
    """

    def __init__(
        self,
        fresh: Callable[[], Matcher],
        vocabulary: Vocabulary,
        triggers: Sequence[str],
        thought_tags: Sequence[str] = (),
        *,
        once: bool = False,
    ) -> None:
        self.fresh, self.vocabulary, self.once = fresh, vocabulary, once
        self.triggers = _Tags(text.encode() for text in triggers if not text.startswith("^"))
        self.beginnings = [_solid(text[1:].encode()) for text in triggers if text.startswith("^")]
        self.thought, *ends = [text.encode() for text in thought_tags] or [b""]
        self.thought_ends = _Tags(ends)
        self._banned: dict[bytes, array[int]] = {}

    def matcher(self, opening: str = "") -> LazyMatcher:
        """`opening`: the text of the request begins with it, before any token."""
        return LazyMatcher(self, opening.encode())

    def started(self, text: bytes, token_id: int | None = None) -> Matcher:
        """Followed through this text; the token is the text's, if it is one."""
        made = self.fresh()
        for one in [token_id] if token_id is not None else self.vocabulary.tokens_of(text):
            made.advance(one)
        return made

    def banned(self, tail: bytes) -> array[int]:
        """Tokens that may not come behind a text that a trigger may begin with at `tail`."""
        banned = self._banned.get(tail)
        if banned is None:
            banned = self._banned[tail] = array("q", self._straddling(tail))
        return banned

    def _straddling(self, overlap: bytes) -> list[int]:
        found: set[int] = set()
        for trigger in self.triggers.tags:
            found.update(self.vocabulary.texts.containing(trigger))
            for size in range(1, min(len(overlap), len(trigger) - 1) + 1):
                if overlap.endswith(trigger[:size]):
                    found.update(self.vocabulary.texts.beginning_with(trigger[size:]))
        return [one for one in sorted(found) if not self._fits(overlap, one)]

    def _fits(self, overlap: bytes, token_id: int) -> bool:
        text = self.vocabulary.text_of(token_id)
        trigger, begin = self.triggers.first(overlap + text)
        if begin < 0:
            return True
        end = begin + len(trigger)
        rest = (overlap + text)[end:]
        return not rest or self.started(trigger + rest).error is None


class LazyMatcher:
    """Where one request stands."""

    def __init__(self, grammar: LazyGrammar, opening: bytes = b"") -> None:
        self._grammar = grammar
        self._inner: Matcher | None = None
        self._inside = self._off = False
        self.is_complete = False
        self._thinking = bool(opening) and opening == grammar.thought
        self._may_think = bool(grammar.thought) and not self._thinking
        self._tail = b""
        """what a tag may begin with: a trigger, or in a thought one that ends it"""
        self._head: bytes | None = None
        """the text so far without white space, while it may be one of the beginnings"""
        if not self._thinking:
            self._begin()
        self._update()

    def _update(self) -> None:
        """What follows from the state."""
        grammar = self._grammar
        may_begin = self._inner is None and not self._off and not self._thinking
        self.banned = grammar.banned(self._tail) if may_begin else _NONE
        """What may not come next though the text is free."""
        self.restricts = self._inner is not None or bool(self.banned)
        """Whether some token may not come next."""
        self._idle = _NOT_IDLE
        """Tokens that do not change the state."""
        if self._inner is None and self._head is None and not self._tail:
            self._idle = (grammar.thought_ends if self._thinking else grammar.triggers).idle

    @property
    def current(self) -> Matcher | None:
        """What says which tokens may come next; None where it is not the grammar."""
        return self._inner

    @property
    def error(self) -> str | None:
        """Only that it takes too much: where text does not fit, it is free from then on."""
        return None if self._inner is None else self._inner.error

    def check(self, token_id: int) -> None:
        """A token that does not fit turns the grammar off, which `advance` sees."""

    def advance(self, token_id: int) -> None:
        idle = self._idle
        if token_id in idle or self._off:
            return
        self._take(token_id)
        self._update()
        if idle is self._idle is not _NOT_IDLE and not self._off:
            idle.add(token_id)

    def _take(self, token_id: int) -> None:
        if self._inside and self._inner is not None:
            self._inner.advance(token_id)
            self._settle()
            return
        text = self._grammar.vocabulary.text_of(token_id)
        if not text:
            return
        if self._thinking:
            rest = self._thought(text)
            if rest is not None:
                self._begin()
                self._look(rest, None)
        else:
            self._look(text, token_id)

    def _begin(self) -> None:
        """At the beginning of the text, or behind the thought that it began with."""
        self._head = b"" if self._grammar.beginnings or self._may_think else None
        if self._grammar.beginnings:
            self._inner = self._grammar.fresh()
            self._inside = b"" in self._grammar.beginnings
            if not self._inside:
                self._inner.beside = self._grammar.vocabulary.special

    def _thought(self, text: bytes) -> bytes | None:
        """What stands behind the thought, if it ends."""
        ends, text = self._grammar.thought_ends, self._tail + text
        tag, index = ends.first(text)
        if index < 0:
            self._tail = ends.overlap(text)
            return None
        self._thinking, self._tail = False, b""
        # All but the closing tag belong to what follows.
        return text[index + (len(tag) if tag == ends.tags[0] else 0) :]

    def _look(self, text: bytes, token_id: int | None) -> None:
        """For a trigger; `token_id` is the token of this text, if it is one."""
        if not text:
            return
        if self._head is not None and self._look_at_head(text, token_id):
            return
        triggers, whole = self._grammar.triggers, self._tail + text
        trigger, index = triggers.first(whole)
        if index < 0:
            self._tail = triggers.overlap(whole)
            return
        rest = whole[index + len(trigger) :]
        own = token_id if text == trigger else None
        self._inner = self._grammar.started(trigger + rest, own)
        self._inside = True
        self._settle()

    def _look_at_head(self, text: bytes, token_id: int | None) -> bool:
        """Whether it is settled what this text is."""
        self._head = head = (self._head or b"") + _solid(text)
        thought = _solid(self._grammar.thought)
        if self._may_think and head.startswith(thought):
            self._may_think, self._thinking = False, True
            self._inner = self._head = None
            return True
        self._may_think = self._may_think and thought.startswith(head)
        begun = any(head.startswith(one) for one in self._grammar.beginnings)
        if self._inner is not None:
            if begun or any(one.startswith(head) for one in self._grammar.beginnings):
                for one in self._tokens(text, token_id):
                    self._inner.advance(one)
                if begun:
                    self._inner.beside, self._inside, self._head = None, True, None
                    self._settle()
                elif self._inner.failed:
                    self._inner = None
                return begun or self._inner is not None
            self._inner = None
        if not self._may_think:
            self._head = None
        return False

    def _tokens(self, text: bytes, token_id: int | None) -> list[int]:
        return [token_id] if token_id is not None else self._grammar.vocabulary.tokens_of(text)

    def _settle(self) -> None:
        """After a token within the grammar."""
        inner = self._inner
        if inner is None or not (inner.failed or inner.is_complete):
            return
        self._off = inner.failed
        self.is_complete = self._grammar.once and not self._off
        self._inner, self._inside, self._tail, self._head = None, False, b"", None


def _solid(text: bytes) -> bytes:
    return text.translate(None, _WHITE_SPACE)
