"""What an engine reports to its caller. The engine makes these records and the worker reads them.

This module loads neither torch nor the protocol, so every engine and every test can use it.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

from rose.errors import RoseError
from rose.sampling import MAX_TOP_LOGPROBS

Task = Literal["generate", "embed", "score"]
"""What a model does: it writes on, turns texts into vectors, or says how well two texts fit."""

FinishReason = Literal["eos", "stop", "length", "error"]


class TokenLogprob(NamedTuple):
    """The natural logarithm of a token's probability, by the model's own logits, before
    temperature, penalties and filters. `top` holds (token id, logarithm) pairs of the likeliest
    tokens, as many as were asked for, the likeliest first."""

    logprob: float
    top: Annotated[tuple[tuple[int, float], ...], Meta(max_length=MAX_TOP_LOGPROBS)]


class PromptLogprobs(NamedTuple):
    """The tokens of a prompt, and log-probabilities: of each but the first, which none precedes."""

    token_ids: Annotated[tuple[int, ...], Meta(min_length=1)]
    logprobs: tuple[TokenLogprob, ...]


class Numbers(NamedTuple):
    """Rows of `width` numbers: a vector for each input of a job, or its scores.

    `data`: float32, little-endian, row after row.
    """

    width: Annotated[int, Meta(ge=1)]
    data: bytes

    @property
    def row_count(self) -> int:
        return len(self.data) // (4 * self.width)

    def rows(self) -> list["array[float]"]:
        return [array_of(self.data[start : start + 4 * self.width]) for start in self._starts]

    def packed(self) -> list[bytes]:
        """Each row as it is."""
        return [self.data[start : start + 4 * self.width] for start in self._starts]

    @property
    def _starts(self) -> range:
        return range(0, len(self.data), 4 * self.width)


def float32(numbers: Iterable[float]) -> bytes:
    """As `Numbers.data` has them."""
    packed = array("f", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def array_of(data: bytes) -> "array[float]":
    """Of little-endian float32."""
    numbers = array("f", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


# There is one for every token: making a dataclass takes four times as long.
class StepOutput(Struct):
    """The result of one step for one request.

    `index` is the position of the first of `token_ids` among the request's generated tokens.
    `text` is the text that has become certain. `finish_reason` comes with the last tokens, or with
    none. "error" means that the request's own parameters or the model stop it; `error` says why.
    `logprobs`, one for each of `token_ids`, are there for a request that asks for them.
    `cached_tokens`, which comes with `finish_reason`, counts the prompt tokens that this engine
    took from its cache; None if it has no cache, or did not use it.
    `prompt_logprobs` come with the first token, for a request that asks for them.
    `text_lengths` says how many characters of `text` each of several tokens brought.
    `stop` is the stop string that ended the request; None where something else did.
    `numbers` is the whole answer to a request that wants no tokens.
    """

    request_id: str
    index: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprob, ...] | None = None
    error: RoseError | None = None
    cached_tokens: int | None = None
    prompt_logprobs: PromptLogprobs | None = None
    text_lengths: tuple[int, ...] | None = None
    stop: str | None = None
    numbers: Numbers | None = None


def text_lengths(texts: Sequence[str]) -> tuple[int, ...] | None:
    """`StepOutput.text_lengths`, by the text of each token."""
    return tuple(map(len, texts)) if len(texts) > 1 else None


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds that the phases of the last step took.

    On CUDA the forward pass is asynchronous: waiting for its results counts as sampling.
    """

    schedule: float = 0.0
    forward: float = 0.0
    sample: float = 0.0
    postprocess: float = 0.0


@dataclass(frozen=True, slots=True)
class SecondTierStats:
    """Tokens that were looked up in the second tier of the prefix cache, and those found; bytes
    that the files hold and that this process has written; and its blocks and states: written,
    dropped before they could be, evicted for others, and found damaged."""

    query_tokens: int = 0
    hit_tokens: int = 0
    held_bytes: int = 0
    written_bytes: int = 0
    written: int = 0
    dropped: int = 0
    evicted: int = 0
    damaged: int = 0


NO_SECOND_TIER = SecondTierStats()


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Gauges of this moment, and counters since the scheduler was made.

    `running` and `waiting` count requests, `capacity` the places in the batch, and `batch_size`
    the requests that the last step computed. `accepted_tokens` are those of `drafted_tokens` that
    turned out to be right.
    """

    running: int = 0
    waiting: int = 0
    capacity: int = 0
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0
    states_total: int = 0
    states_used: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    second_tier: SecondTierStats = NO_SECOND_TIER
    batch_size: int = 0
    step_times: StepTimes = StepTimes()

    @property
    def kv_usage_ratio(self) -> float:
        """The share of KV blocks in use, or of states where that is more; 0 for an engine without
        any."""
        blocks = self.kv_blocks_used / self.kv_blocks_total if self.kv_blocks_total else 0.0
        return max(blocks, self.states_used / self.states_total if self.states_total else 0.0)
