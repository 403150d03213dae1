"""Changes to one request's logits before they are filtered and sampled, with their state.

Each is a function of the request's parameters and its tokens so far, so a request that resumes in
another process from its logged ids continues in the same way. `batch` applies them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence

from rose.sampling import SamplingParams
from roseinfer.logits_processors.lazy import LazyMatcher
from roseinfer.logits_processors.matcher import Matcher
from roseinfer.logits_processors.thought_budget import ThoughtBudget
from roseinfer.logits_processors.token_history import NgramIndex, TokenCounts


class LogitsProcessor:
    """One request's penalties, bias, bans, grammar and limit of thoughts, with their state."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int] = (),
        *,
        ends: Iterable[int] = (),
        matcher: Matcher | LazyMatcher | None = None,
        thoughts: ThoughtBudget | None = None,
    ) -> None:
        """`ends` are the ids in the vocabulary that end the request."""
        self.params = params
        self.ends = sorted(ends)
        self.matcher = matcher
        self._thoughts = thoughts
        self.bias_ids = array("q", [token_id for token_id, _ in params.logit_bias])
        self.biases = array("d", [bias for _, bias in params.logit_bias])
        self.counts: TokenCounts | None = None
        if params.penalises:
            # Presence and frequency are about the output: only repetition looks at the prompt.
            self.counts = TokenCounts(prompt_ids if params.repetition_penalty != 1 else ())
        self._ngrams: NgramIndex | None = None
        if params.no_repeat_ngram_size:
            self._ngrams = NgramIndex(params.no_repeat_ngram_size, prompt_ids)
        changes_all = self.counts is not None or self._ngrams is not None or bool(self.bias_ids)
        self._changed_positions = math.inf if changes_all else params.min_new_tokens
        """the logits of so many are changed, whatever the text"""

    @property
    def grammar(self) -> Matcher | None:
        """What says which tokens may come next, where a grammar does."""
        return None if self.matcher is None or self.forced is not None else self.matcher.current

    @property
    def forced(self) -> int | None:
        """The only token that may come next, whatever else says; None where any may."""
        return None if self._thoughts is None else self._thoughts.forced

    def changes(self, position: int) -> bool:
        """Whether the logits of the token at `position` are not just taken as they are."""
        return (
            position < self._changed_positions
            or (self.matcher is not None and self.matcher.restricts)
            or self.forced is not None
        )

    def add(self, token_id: int) -> None:
        """Count a generated token."""
        if self.counts is not None:
            self.counts.add(token_id)
        if self._ngrams is not None:
            self._ngrams.add(token_id)
        if self._thoughts is not None:
            self._thoughts.add(token_id)

    def banned(self, position: int) -> array[int]:
        """The ids that the token at `position` must not be, each once."""
        ids = set(self.ends) if position < self.params.min_new_tokens else set()
        if self._ngrams is not None:
            ids.update(self._ngrams.repeats())
        if self.matcher is not None:
            ids.update(self.matcher.banned)
        return array("q", ids)
