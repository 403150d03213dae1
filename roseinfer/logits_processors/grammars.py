"""Text that must fit a JSON schema, a regular expression or a Lark grammar, by llguidance.

A grammar is compiled to a matcher. Before a token is sampled the matcher says which tokens may come
next; then it takes the sampled one. Its state depends on the grammar and the tokens only, so
replaying logged ids rebuilds it.

llguidance bounds the cost of a grammar, when it is compiled and in every step. A matcher that
exceeds a bound has an error from then on, and its request ends with that error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from functools import cached_property
from typing import Any

import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import decoders, pre_tokenizers
from torch import Tensor

from rose.errors import InvalidParameter
from rose.sampling import JSON_LAYOUT, Grammar
from roseinfer.devices.transfer import to_device

log = logging.getLogger("rose.grammars")

# Errors quote the grammar, whose length is up to the user.
_MAX_REPORT_LENGTH = 300
#: llguidance's word for a grammar that lets no token begin a text.
_UNMATCHABLE = "NoExtensionBias"
# Each lexer state takes 1 to 2 kB as long as the request runs. This is a tenth of the default.
_MAX_LEXER_STATES = 25_000


class GrammarCompiler:
    """Compiles grammars for one tokenizer. Threads may share it."""

    def __init__(
        self, tokenizer: Any | None, vocab_size: int, eos_token_ids: AbstractSet[int]
    ) -> None:
        """`tokenizer` is transformers' fast kind, or None: then nothing can be compiled."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar) -> Matcher:
        """Raises InvalidParameter for a grammar that is wrong, or costs too much, and where there
        is no tokenizer, or one that cannot be used."""
        if self._tokenizer is None:
            raise InvalidParameter(f"{grammar.kind} needs a tokenizer, and this engine has none")
        with self._lock:
            vocabulary = self._vocabulary
        limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
        matcher = LLMatcher(vocabulary, _to_lark(grammar), log_level=0, limits=limits)
        if matcher.is_error():
            raise InvalidParameter(_report(grammar.kind, matcher.get_error()))
        return Matcher(grammar.kind, matcher, vocabulary.vocab_size)

    def token_bytes(self) -> list[bytes] | None:
        """The bytes of each token by its id: special ones are their names, ids that the tokenizer
        lacks are empty. None if there is no tokenizer, or one that cannot be used."""
        if self._tokenizer is None:
            return None
        try:
            with self._lock:
                vocabulary = self._vocabulary
        except InvalidParameter as error:
            log.warning("the bytes of single tokens are not known: %s", error)
            return None
        known = set(self._tokenizer.get_vocab().values())
        ids = range(max(known, default=-1) + 1)
        return [vocabulary.decode_bytes([i]) if i in known else b"" for i in ids]

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        """The tokenizer as llguidance knows it; takes up to a second for a large one."""
        tokenizer = self._tokenizer
        size = len(tokenizer or ())
        ends = sorted(token_id for token_id in self._eos_token_ids if token_id < size)
        if not ends:
            raise InvalidParameter("a grammar needs an end-of-text token, which this model lacks")
        try:
            description = _readable(tokenizer).to_str()
            return LLTokenizer(description, n_vocab=max(size, self._vocab_size), eos_token=ends)
        except Exception as error:
            raise InvalidParameter(
                _report("grammars do not work with this model's tokenizer", str(error))
            ) from error


def _readable(tokenizer: Any) -> Any:
    """A copy of what is behind `tokenizer`, with the same bytes for each token, that llguidance
    understands."""
    backend = copy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    # A space that is put before each text would stand before each piece that a grammar forces.
    before: Any = backend.pre_tokenizer
    steps: Any = before if isinstance(before, pre_tokenizers.Sequence) else [before]
    for step in steps:
        if isinstance(step, pre_tokenizers.ByteLevel):
            step.add_prefix_space = False
    # It knows this decoder only as steps, one of which reads names as bytes: there must be none.
    decoder, has_byte_names = backend.decoder, backend.token_to_id("<0x0A>") is not None
    if isinstance(decoder, decoders.Metaspace) and not has_byte_names:
        space = decoders.Replace(decoder.replacement, " ")
        backend.decoder = decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _to_lark(grammar: Grammar) -> str:
    """In the notation that llguidance compiles. Raises InvalidParameter."""
    try:
        match grammar.kind:
            case "json_schema":
                layout: Any = JSON_LAYOUT
                return LLMatcher.grammar_from_json_schema(grammar.source, layout)
            case "regex":
                return LLMatcher.grammar_from_regex(grammar.source)
        return LLMatcher.grammar_from_lark(grammar.source)
    except ValueError as error:
        raise InvalidParameter(_report(grammar.kind, str(error))) from None


def _report(what: str, error: str) -> str:
    reason = "no text fits it" if _UNMATCHABLE in error else " ".join(error.split())
    return f"{what}: {reason[:_MAX_REPORT_LENGTH]}"


class Matcher:
    """Where one request stands in its grammar."""

    def __init__(self, kind: str, state: LLMatcher, vocab_size: int) -> None:
        self._kind = kind
        self._state = state
        self._vocab_size = vocab_size

    def advance(self, token_id: int) -> None:
        """Take the next token; one that does not fit is an error."""
        self._state.consume_token(token_id)

    def check(self, token_id: int) -> None:
        """Have an error if `token_id` may not come next."""
        if self._state.validate_tokens([token_id]):
            return
        # Why nothing may come shows when the mask is computed.
        self._fill(torch.zeros(-(-self._vocab_size // 32), dtype=torch.int32))
        if not self._state.is_error():
            self.advance(token_id)

    @property
    def error(self) -> str | None:
        """Why it cannot go on, if it cannot."""
        return _report(self._kind, self._state.get_error()) if self._state.is_error() else None

    @property
    def is_complete(self) -> bool:
        """The text fits, and nothing may follow it."""
        return self._state.is_stopped() and not self._state.is_error()

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
        for mask, (matcher, excluded) in zip(masks, matchers, strict=True):
            matcher._fill(mask)
            _exclude(mask, excluded)
        bits = torch.arange(8, dtype=torch.uint8, device=device)
        octets = to_device(masks.view(torch.uint8), device)  # little-endian, as the masks are
        return (octets.unsqueeze(-1) >> bits & 1).view(len(matchers), -1)[:, :vocab_size].bool()

    def _fill(self, mask: Tensor) -> None:
        own = mask[: -(-self._vocab_size // 32)]
        self._state.unsafe_compute_mask_ptr(own.data_ptr(), own.numel() * own.itemsize)


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
