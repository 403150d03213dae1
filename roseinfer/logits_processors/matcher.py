"""Where a request stands in its grammar.

Before a token is sampled a matcher says which tokens may come next; then it takes the sampled one.
Its state depends on the grammar and the tokens only, so replaying logged ids rebuilds it. One that
exceeds a bound has an error from then on, and its request ends with that error.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from roseinfer.devices.transfer import to_device
from roseinfer.logits_processors.grammars import GrammarState, report

#: Processor time that following one text may take, in all and for each mask on average.
_MASKS_S = 0.5
_MASK_S = 0.003
#: And those of all requests in a step. In one that takes longer, whoever takes more than an equal
#: part pays for it.
_STEP_S = 0.03


_NONE: array[int] = array("q")


class Matcher:
    """Where one request stands in its grammar."""

    def __init__(self, kind: str, state: GrammarState, vocab_size: int) -> None:
        self._kind = kind
        self._state = state
        self._vocab_size = vocab_size
        self._left_s = _MASKS_S
        """processor time that following it may still take"""
        self.beside: Tensor | None = None
        """a mask of tokens that may come too, whatever the grammar says"""
        self.banned = _NONE
        self.restricts = True
        """Whether some token may not come next."""

    @property
    def current(self) -> Matcher | None:
        """What says which tokens may come next."""
        return self

    def advance(self, token_id: int) -> None:
        """Take the next token; one that does not fit is an error."""
        began = time.thread_time()
        self._state.consume_token(token_id)  # which may read the whole text again
        self._left_s -= time.thread_time() - began

    def check(self, token_id: int) -> None:
        """Have an error if `token_id` may not come next."""
        if self._state.validate_tokens([token_id]):
            return
        # Why nothing may come shows when the mask is computed.
        self._fill(torch.zeros(-(-self._vocab_size // 32), dtype=torch.int32))
        if not self._state.is_error():
            self.advance(token_id)

    @property
    def failed(self) -> bool:
        """The text does not fit, or the grammar is too much for llguidance."""
        return self._state.is_error()

    @property
    def error(self) -> str | None:
        """Why it cannot go on, if it cannot."""
        if self._state.is_error():
            return report(self._kind, self._state.get_error())
        if self._left_s < 0:
            return (
                f"{self._kind}: following it takes more than {_MASK_S * 1000:.0f} ms for a token, "
                f"or more than its part of {_STEP_S * 1000:.0f} ms for a token of all requests"
            )
        return None

    @property
    def is_complete(self) -> bool:
        """The text fits, and nothing may follow it."""
        return self._state.is_stopped() and self.error is None

    @staticmethod
    def allowed(
        matchers: Sequence[tuple[Matcher, Sequence[int]]], vocab_size: int, device: torch.device
    ) -> Tensor:
        """Which tokens may come next, bool [S, vocab_size] on `device`: a row for each matcher.

        Beside a matcher stand ids that must not come unless its grammar allows no others. A
        matcher that finds that it cannot go on has an error afterwards; its row means nothing.
        """
        words = -(-max(vocab_size, *(matcher._vocab_size for matcher, _ in matchers)) // 32)
        masks = torch.zeros(len(matchers), words, dtype=torch.int32)
        took_s = []
        for mask, (matcher, excluded) in zip(masks, matchers, strict=True):
            took_s.append(matcher._fill(mask))
            _exclude(mask, excluded)
        _share([matcher for matcher, _ in matchers], took_s)
        bits = torch.arange(8, dtype=torch.uint8, device=device)
        octets = to_device(masks.view(torch.uint8), device)  # little-endian, as the masks are
        return (octets.unsqueeze(-1) >> bits & 1).view(len(matchers), -1)[:, :vocab_size].bool()

    def _fill(self, mask: Tensor) -> float:
        """Returns the processor time that it took."""
        own = mask[: -(-self._vocab_size // 32)]
        began = time.thread_time()
        self._state.compute_mask(own.data_ptr(), own.numel() * own.itemsize)
        took_s = time.thread_time() - began
        self._left_s += _MASK_S - took_s
        if self.beside is not None:
            own |= self.beside
        return took_s


def _share(matchers: Sequence[Matcher], took_s: Sequence[float]) -> None:
    excess = sum(took_s) / _STEP_S
    if excess > 1:
        for matcher, own_s in zip(matchers, took_s, strict=True):
            if own_s > _STEP_S / len(matchers):
                matcher._left_s -= _MASK_S + own_s * (excess - 1)


def _exclude(mask: Tensor, token_ids: Sequence[int]) -> None:
    """Clear the bits of `token_ids` in the int32 `mask`, unless they are the only ones."""
    if not token_ids:
        return
    cleared: dict[int, int] = {}
    for token_id in token_ids:
        word, bit = divmod(token_id, 32)
        cleared[word] = cleared.get(word, 0) | 1 << bit
    rest = mask.clone()
    # As int64, for a word with its highest bit set is no int32 before the conversion wraps it.
    rest[torch.tensor([*cleared])] &= ~torch.tensor([*cleared.values()]).int()
    if rest.any():
        mask.copy_(rest)
