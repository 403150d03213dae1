"""Token ids in, text out: one stream per request.

    ids -> characters (DecodeStream) -> cut before the first stop string -> deltas

The stream is a pure function of the prompt and the ids pushed so far, so replaying logged ids
rebuilds the state that another process had, and the concatenated deltas do not depend on where a
request was interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers.decoders import DecodeStream

# Enough of the prompt's end for the decoder to know what the first generated token follows: a
# letter it must be joined to, or a space that belongs between them.
_PRIMING_TOKENS = 16


class Detokenizer:
    """Opens text streams. `tokenizer` is a `tokenizers.Tokenizer`, or None for no text at all."""

    def __init__(self, tokenizer: Any | None) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder() if tokenizer is not None else {}
        self._special = {i for i, token in added.items() if token.special}

    def stream(self, prompt_ids: Sequence[int], stop: Sequence[str] = ()) -> TextStream:
        """The stream for a request whose generated tokens follow `prompt_ids`."""
        ordinary = [i for i in prompt_ids if i not in self._special]
        return TextStream(self._tokenizer, ordinary[-_PRIMING_TOKENS:], stop)


class TextStream:
    """The text of one request; `context` are the ordinary tokens just before the first one."""

    def __init__(
        self, tokenizer: Any | None, context: Sequence[int] = (), stop: Sequence[str] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._stops = StopStrings(stop)
        self._stream = DecodeStream(skip_special_tokens=True)
        if tokenizer is not None:
            for token_id in context:
                self._stream.step(tokenizer, token_id)

    @property
    def stopped(self) -> bool:
        """True once a stop string has appeared; everything from its first character on is cut."""
        return self._stops.found

    def push(self, token_id: int, *, may_stop: bool = True) -> str:
        """Add one generated token; returns the characters that are now certain.

        A character whose bytes are not all there yet, and a tail that may turn out to be the
        beginning of a stop string, are held back. No stop string is looked for in the text of
        tokens that may not stop; these come before all others.
        """
        if self._tokenizer is None:
            return ""
        delta = self._stream.step(self._tokenizer, token_id) or ""
        return self._stops.push(delta) if may_stop else delta

    def finish(self) -> str:
        """What was held back for a stop string that never came. Half a character is dropped."""
        return self._stops.finish()


class StopStrings:
    """Cuts a stream of text before the first of `stops`, without emitting what may be one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, delta: str) -> str:
        if self.found:
            return ""
        text = self._held + delta
        cuts = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        if cuts:
            self.found = True
            self._held = ""
            return text[: min(cuts)]
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
