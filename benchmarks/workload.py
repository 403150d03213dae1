"""The requests that every contender is given."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: With this seed 32 requests have 4,867 prompt tokens and ask for 2,302 new ones.
_LENGTHS_SEED = 24
_PROMPT_TOKENS = 32, 256
_MAX_TOKENS = 128
#: Tokens of the longest request.
LONGEST = _PROMPT_TOKENS[1] + _MAX_TOKENS


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts as token ids, and how many tokens each asks for."""

    prompts: list[list[int]]
    new_tokens: list[int]

    @property
    def tokens(self) -> int:
        return sum(self.new_tokens)

    @classmethod
    def draw(
        cls, requests: int, vocabulary: int, seed: int, max_tokens: int = _MAX_TOKENS
    ) -> Workload:
        """Prompts of 32 to 256 tokens, answers of 16 to 128: the same lengths in each round.

        `max_tokens` cuts the answers shorter. Another `seed` for each round, or the prefix cache
        would spare the later ones their prefill.
        """
        lengths = random.Random(_LENGTHS_SEED)  # noqa: S311 - a workload, no secret
        sizes = [
            (lengths.randint(*_PROMPT_TOKENS), lengths.randint(16, _MAX_TOKENS))
            for _ in range(requests)
        ]
        prompts = [
            random_prompt(size, vocabulary, seed=f"{seed}/{n}") for n, (size, _) in enumerate(sizes)
        ]
        return cls(prompts, [min(wanted, max_tokens) for _, wanted in sizes])

    def first(self, requests: int, max_tokens: int) -> Workload:
        """A small part of it, to warm up with."""
        few = [min(wanted, max_tokens) for wanted in self.new_tokens[:requests]]
        return Workload(self.prompts[:requests], few)


def random_prompt(size: int, vocabulary: int, seed: str) -> list[int]:
    source = random.Random(seed)  # noqa: S311 - a workload, no secret
    return [source.randrange(vocabulary) for _ in range(size)]
