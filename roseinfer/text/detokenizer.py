"""Token ids in, text out: one stream per request.

    ids -> characters -> cut before the first stop string -> deltas

A token whose bytes are whole characters is looked up in a table; DecodeStream joins the others.

The stream is a pure function of the prompt and the ids pushed so far, so replaying logged ids
rebuilds the state that another process had, and the concatenated deltas do not depend on where a
request was interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tokenizers.decoders import ByteLevel, DecodeStream

# Enough of the prompt's end for the decoder to know what the first generated token follows: a
# letter it must be joined to, or a space that belongs between them.
_PRIMING_TOKENS = 16
# Pieces that stand for a byte each are decoded together with their neighbours of the kind: a run of
# them that lacks its beginning is no text at all. This is the longest that is looked back over.
_LONGEST_BYTE_RUN = 1024
# The opening of a thought, and white space behind it.
_PROMPT_END_TOKENS = 32
# Decoders put it in the place of bytes that are no character, or not yet.
_BROKEN = "\ufffd"
_NOTHING: Mapping[int, str] = MappingProxyType({})


class Detokenizer:
    """Opens text streams. `tokenizer` is a `tokenizers.Tokenizer`, or None for no text at all."""

    def __init__(self, tokenizer: Any | None) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder() if tokenizer is not None else {}
        self._special = {token.content: i for i, token in added.items() if token.special}
        self._special_ids = frozenset(self._special.values())
        self._bytes = set() if tokenizer is None else _byte_tokens(tokenizer)
        joins_bytes = tokenizer is not None and isinstance(tokenizer.decoder, ByteLevel)
        self._texts = _TokenTexts(tokenizer) if joins_bytes else None

    def stream(
        self,
        prompt_ids: Sequence[int],
        stop: Sequence[str] = (),
        *,
        shown_special: Sequence[str] = (),
        shown_prompt_end: Sequence[str] = (),
    ) -> TextStream:
        """The stream for a request whose generated tokens follow `prompt_ids`. The other arguments
        are as in `SamplingParams`."""
        ordinary = [i for i in prompt_ids if i not in self._special_ids]
        begin = max(0, len(ordinary) - _PRIMING_TOKENS)
        least = max(0, begin - _LONGEST_BYTE_RUN)
        while begin > least and ordinary[begin - 1] in self._bytes:
            begin -= 1
        return TextStream(
            self._tokenizer,
            ordinary[begin:],
            stop,
            self._texts,
            {self._special[name]: name for name in shown_special if name in self._special},
            self.end_of(prompt_ids, shown_prompt_end),
        )

    def end_of(self, prompt_ids: Sequence[int], ends: Sequence[str]) -> str:
        """The one of `ends` with which the prompt ends; "" if it is none."""
        if not ends or self._tokenizer is None:
            return ""
        tail = list(prompt_ids[-_PROMPT_END_TOKENS:])
        text: str = self._tokenizer.decode(tail, skip_special_tokens=False).rstrip()
        return next((end for end in ends if text.endswith(end)), "")


class _TokenTexts(dict[int, str | None]):
    """The text of each token by itself; None if its bytes are not whole characters.

    For tokenizers whose text is the bytes of the tokens, joined. It is filled as tokens come.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> str | None:
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=True)
        whole = self[token_id] = None if _BROKEN in text else text
        return whole


def _byte_tokens(tokenizer: Any) -> set[int | None]:
    """The ids of pieces that stand for one byte each, as in models of sentencepiece."""
    return {tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256)} - {None}


class TextStream:
    """The text of one request; `context` are the ordinary tokens just before the first one."""

    def __init__(
        self,
        tokenizer: Any | None,
        context: Sequence[int] = (),
        stop: Sequence[str] = (),
        texts: _TokenTexts | None = None,
        shown: Mapping[int, str] = _NOTHING,
        opening: str = "",
    ) -> None:
        """`texts`: where tokens can be read one by one. `shown`: special tokens and their names.
        `opening`: the text begins with it."""
        self._tokenizer, self._texts = tokenizer, texts
        self._stops = StopStrings(stop)
        self._stream = DecodeStream(skip_special_tokens=True)
        self._shown_special = shown
        self._opening = opening
        self._plain_texts = None if stop or shown or opening else texts
        self._may_stop = True
        self._shown: list[int] = []
        """the tokens of the last text that became certain"""
        self._pending: list[int] = []
        """tokens whose text is not certain yet"""
        if tokenizer is not None:
            for token_id in context:
                self._decode(tokenizer, token_id)

    @property
    def is_whole(self) -> bool:
        """Whether the text of all tokens is certain, but for stop strings."""
        return not self._pending

    @property
    def stop(self) -> str | None:
        """The stop string that has appeared; everything from its first character on is cut."""
        return self._stops.found

    def push(self, token_id: int, *, may_stop: bool = True) -> str:
        """Add one generated token; returns the characters that are now certain.

        A character whose bytes are not all there yet, and a tail that may turn out to be the
        beginning of a stop string, are held back. No stop string is looked for in the text of
        tokens that may not stop; these come before all others.
        """
        if self._plain_texts is not None and not self._pending:  # as nearly always
            text = self._plain_texts[token_id]
            if text is not None:
                return text
        if self._tokenizer is None:
            return ""
        self._may_stop = may_stop
        if token_id in self._shown_special:
            delta = self._flush() + self._shown_special[token_id]
        else:
            delta = self._decode(self._tokenizer, token_id)
        if self._opening:
            delta, self._opening = self._opening + delta, ""
        return self._stops.push(delta) if may_stop else delta

    def _flush(self) -> str:
        """What is held back, before a name that no decoder joins to it."""
        if not self._pending:
            return ""
        tail = self._whole_characters()
        self._pending.clear()
        self._stream = DecodeStream(skip_special_tokens=True)
        if self._texts is None and self._tokenizer is not None:
            for token_id in self._shown:
                self._stream.step(self._tokenizer, token_id)
        return tail

    def _decode(self, tokenizer: Any, token_id: int) -> str:
        if self._texts is not None and not self._pending:
            text = self._texts[token_id]
            if text is not None:
                return text
        try:
            delta = self._stream.step(tokenizer, token_id)
        except Exception:  # noqa: BLE001 - tokenizers has no other
            # With this token the decoder reads earlier ones in another way, such as a line break
            # that is a byte before the first half of a character. What is shown stays; the rest is
            # read by itself.
            delta = tokenizer.decode([*self._pending, token_id], skip_special_tokens=True)
            self._stream = DecodeStream(skip_special_tokens=True)
            self._stream.step(tokenizer, token_id)
        if delta is None:
            self._pending.append(token_id)
            return ""
        self._shown = [*self._pending, token_id]
        self._pending.clear()
        if self._texts is not None:
            self._stream = DecodeStream(skip_special_tokens=True)
        return delta

    def finish(self) -> str:
        """What was held back: whole characters whose token ends in half of another, and what might
        have become a stop string. Half a character is dropped."""
        tail = self._whole_characters()
        self._pending.clear()
        return (self._stops.push(tail) if self._may_stop else tail) + self._stops.finish()

    def _whole_characters(self) -> str:
        """The text of the pending tokens, without the half of a character at its end."""
        if self._tokenizer is None or not self._pending:
            return ""
        decode = self._tokenizer.decode
        shown: str = decode(self._shown, skip_special_tokens=True)
        text: str = decode([*self._shown, *self._pending], skip_special_tokens=True)
        tail: str = text[len(shown) :]
        if not text.startswith(shown):  # together they are read in another way; what is shown stays
            tail = decode(self._pending, skip_special_tokens=True)
        return tail.rstrip("\ufffd")


class StopStrings:
    """Cuts a stream of text before the first of `stops`, without emitting what may be one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None
        """the first of them that has appeared"""

    def push(self, delta: str) -> str:
        if self.found is not None:
            return ""
        if not self._stops:
            return delta
        text = self._held + delta
        cuts = [(start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if cuts:
            start, self.found = min(cuts)
            self._held = ""
            return text[:start]
        keep = self._possible_beginning(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The held tail: the request ended, so it was no stop string after all."""
        held, self._held = self._held, ""
        return held

    def _possible_beginning(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
