"""One request's state: its tokens, how many of them the cache holds, and its text."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch
from torch import Tensor

from rose.engine_records import FinishReason, PromptLogprobs, TokenLogprob
from rose.errors import InvalidParameter, LogitsNotFinite, RoseError
from rose.sampling import SamplingParams
from roseinfer.kv_cache.block_pool import BlockPool, Parent, block_table
from roseinfer.kv_cache.second_tier import Record, SecondTier
from roseinfer.logits_processors.processor import LogitsProcessor
from roseinfer.sessions.own_drafts import OwnDrafts
from roseinfer.sessions.prompt_lookup import PromptLookup
from roseinfer.sessions.session_state import SessionState
from roseinfer.text.detokenizer import TextStream

_NO_TOKENS = range(0)


class Chunk:
    """The next `count` tokens of a session whose KV is to be computed in this step.

    The last of them may be `drafts` of what comes behind the session's known tokens. Then
    the logits of the last known token and of each draft are wanted.

    It is made for the session as it is, and is of use until a step has computed it. `end` is how
    many tokens are computed then. `is_last`: that reaches the last known token, so that the next
    can be sampled. `scored` are the prompt's tokens that the step scores: the row before each has
    its logits. So its last `logit_rows` rows have logits, and from those of the last `sampled_rows`
    tokens are sampled. `hidden` [hidden_rows, H] are the hidden states of the last rows, once a
    step has computed it: of a session for which its model's own head drafts.
    """

    __slots__ = (
        *("session", "count", "drafts", "end"),
        *("is_last", "scored", "sampled_rows", "logit_rows", "hidden_rows", "hidden"),
    )

    def __init__(self, session: InferenceSession, count: int, drafts: tuple[int, ...] = ()) -> None:
        self.session, self.count, self.drafts = session, count, drafts
        self.end = session.computed + count
        self.is_last = self.end - len(drafts) == session.num_known
        self.scored = _scored(session, self.end) if session.lacks_scores else _NO_TOKENS
        self.sampled_rows = 1 + len(drafts) if self.is_last else 0
        self.logit_rows = len(self.scored) + self.sampled_rows
        own = session.own_drafts
        self.hidden_rows = 0 if own is None else own.rows_wanted(self.end, session.num_known, count)
        self.hidden: Tensor | None = None

    @property
    def kept_rows(self) -> int:
        """Its last rows that leave the last layer."""
        return max(self.logit_rows, self.hidden_rows)

    def keep_hidden(self, hidden: Tensor) -> None:
        """Once its session has counted what is computed: what the head for drafts will read."""
        own = self.session.own_drafts
        if own is not None and self.session.finish_reason is None:
            first = self.end - self.hidden_rows
            own.take(hidden[: self.session.computed - first], first)
        self.hidden = None

    def input_ids(self, device_tokens: DeviceTokens | None) -> list[int]:
        """Its tokens; one that only the device knows has a placeholder of `device_tokens`."""
        ids = self.session.tokens[self.session.computed : self.end]
        ids += self.drafts
        if len(ids) < self.count:
            ids.append(self.from_device(device_tokens))
        return ids

    def from_device(self, device_tokens: DeviceTokens | None) -> int:
        """The placeholder of its last token."""
        if device_tokens is None:
            raise RuntimeError("a step needs a token that has not come back from the device")
        return -(device_tokens.rows[self.session] + 1)


def _scored(session: InferenceSession, end: int) -> range:
    first = max(session.computed + 1, session.num_scored)
    return range(first, min(end + 1, session.prompt_length))


@dataclass(frozen=True, slots=True)
class DeviceTokens:
    """Tokens that were sampled on the device and have not reached the host.

    Row `rows[s]` of `ids` [S] is the last token of session s. The host lays out a step with a
    placeholder for each of them, and `fill` replaces it on the device: a negative number, which no
    token id is, from which `fill` knows the row.
    """

    rows: dict[InferenceSession, int]
    ids: Tensor

    def fill(self, input_ids: Tensor) -> Tensor:
        """`input_ids` with the tokens in the place of their placeholders. A row without a token
        ends its session: any id will do."""
        rows = (-input_ids - 1).clamp_(min=0)
        return torch.where(input_ids < 0, self.ids[rows].clamp_(min=0), input_ids)


NO_TOKEN = -1
"""What a sampler gives for a row in which nothing can be drawn: its largest logit is not finite."""


class SamplingRequest:
    """How to sample one row; `position` is the index of the token to generate.

    `logits_processor` is None for a request that does not change its logits. `packed` are its
    parameters as the kernel of gpu/kernels/sampling.py reads them, with 0 for what differs from
    step to step: the line, the target (the first two numbers) and the position.
    """

    __slots__ = ("logits_processor", "packed", "params", "position")

    _FIELDS = struct.Struct("<5q3d")
    FIELDS = _FIELDS.size // 8
    POSITION, DIVISOR = 4, 5
    """among the numbers"""

    def __init__(
        self,
        params: SamplingParams,
        position: int,
        logits_processor: LogitsProcessor | None = None,
    ) -> None:
        self.params, self.position, self.logits_processor = params, position, logits_processor
        p = params
        self.packed = self._FIELDS.pack(
            0, 0, p.top_k or 0, p.seed or 0, 0, p.divisor, p.top_p, p.min_p
        )

    @property
    def is_changed(self) -> bool:
        """Whether its logits are not just taken as they are."""
        processor = self.logits_processor
        return processor is not None and processor.changes(self.position)


class InferenceSession:
    """A request on its way through the engine.

    `tokens` is the prompt followed by the generated tokens. The keys and values of the first
    `computed` of them are in the cache. When those of the last known token are computed, the next
    token can be sampled:

        tokens     p p p p p p p p g g g
        computed   |-------------->|             prefill, decode, resume, recompute: all the same

    `ahead` counts tokens that were sampled on the device and have not reached the host. The
    scheduler knows only how many they are.

    Cached prefixes are shared among requests with the same `cache_salt` only.

    `blocks` is the block table; it covers at least the computed tokens. `state` is what layers keep
    that remember them as a whole. `finish_reason` is None
    while the request runs, then "eos", "stop", "length", or "error" if its grammar or its model
    cannot go on.
    """

    def __init__(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        text: TextStream,
        *,
        generated_ids: Sequence[int] = (),
        eos_token_ids: AbstractSet[int] = frozenset(),
        logits_processor: LogitsProcessor | None = None,
        context_length: int,
        cache_salt: str = "",
    ) -> None:
        """The engine's `new_session` checks the arguments; `params` must carry a seed.

        Another process made `generated_ids`: their text is rebuilt and not reported again. If they
        already end the request, the session is finished from the start.
        """
        self.request_id = request_id
        self.params = params
        self.context_length = context_length
        self.cache_salt = cache_salt
        self.tokens = list(prompt_ids)
        self.prompt_length = len(self.tokens)
        self._most_tokens = min(self.prompt_length + params.max_new_tokens, context_length)
        self._stops_behind = self.prompt_length + params.min_new_tokens
        self.computed = 0
        self.ahead = 0
        self.lookup = PromptLookup()
        self.own_drafts: OwnDrafts | None = None
        self.blocks = block_table()
        self.cached_tokens: int | None = None  # of the prompt, found at the first admission
        self.admissions = 0  # times it was taken into a batch; more than one after preemption
        self._scores: list[TokenLogprob] = []  # of the prompt's tokens from the second on
        # Tokens of the prompt that wait for no score. The first one has none, and scores go with
        # the first generated token: one that another process made had them.
        wanted = params.prompt_logprobs and not generated_ids
        self.num_scored = 1 if wanted else self.prompt_length
        self.finish_reason: FinishReason | None = None
        self._deltas: list[str] = []
        self._stream = text
        self._ends = ends_of(params, eos_token_ids)
        self._logits_processor = logits_processor
        self._matcher = logits_processor.matcher if logits_processor is not None else None
        self._sampling_request = SamplingRequest(params, 0, logits_processor)
        # With so many known tokens, some of them ahead, it waits for those.
        self.waits_from = self._most_tokens if logits_processor is None else 0
        self._next_token: Chunk | None = None
        self._not_finite: LogitsNotFinite | None = None
        self._is_plain = logits_processor is None and not params.stop
        """Nothing ends it but an id or its length."""
        self._serials: list[int] = []  # of the content in the table's leading, full blocks
        self._records: list[Record] = []  # of its full blocks, where there is a second tier
        self.state = SessionState(self.prompt_length)
        for token_id in generated_ids:
            if self.finish_reason is None:
                self.append(token_id)

    @property
    def prompt_ids(self) -> list[int]:
        return self.tokens[: self.prompt_length]

    @property
    def num_known(self) -> int:
        return len(self.tokens) + self.ahead

    @property
    def num_pending(self) -> int:
        """Known tokens whose keys and values are not in the cache yet."""
        return len(self.tokens) + self.ahead - self.computed

    @property
    def num_generated(self) -> int:
        """Tokens that the host has."""
        return len(self.tokens) - self.prompt_length

    @property
    def waits(self) -> bool:
        """Whether it must wait until the host has the tokens ahead: they are its last ones, or its
        logits processor depends on them."""
        return self.ahead > 0 and len(self.tokens) + self.ahead >= self.waits_from

    @property
    def text(self) -> str:
        """What its generated tokens say so far."""
        return "".join(self._deltas)

    def next_token(self) -> Chunk:
        """The chunk of the last known token alone, the only one that is not computed. Its steps
        share it: none is laid out before the one before it is launched."""
        if self.num_scored < self.prompt_length:
            return Chunk(self, 1)
        chunk = self._next_token
        if chunk is None:
            chunk = self._next_token = Chunk(self, 1)
        chunk.end = self.computed + 1
        return chunk

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def ends(self) -> AbstractSet[int]:
        """The ids that end it."""
        return self._ends.keys()

    def sampling_request(self, further: int = 0) -> SamplingRequest:
        """How to sample its next token, or the one that is `further` tokens behind it. That for the
        next token is one object, of use until it is asked for again."""
        position = len(self.tokens) - self.prompt_length + self.ahead + further
        if further:
            return SamplingRequest(self.params, position, self._logits_processor)
        self._sampling_request.position = position
        return self._sampling_request

    @property
    def lacks_scores(self) -> bool:
        return self.num_scored < self.prompt_length

    def score(self, first: int, scores: Sequence[TokenLogprob]) -> None:
        """Take the scores of the prompt's tokens from `first` on; it may have some of them."""
        self._scores += scores[self.num_scored - first :]
        self.num_scored = 1 + len(self._scores)

    @property
    def prompt_logprobs(self) -> PromptLogprobs | None:
        """If the request wants them and all are there."""
        if len(self._scores) < self.prompt_length - 1 or not self.params.prompt_logprobs:
            return None
        return PromptLogprobs(tuple(self.prompt_ids), tuple(self._scores))

    def check(self, token_id: int) -> None:
        """Whether the grammar allows the next token, for a sampler that follows the grammar with a
        matcher of its own and cannot say that it failed. If not, `append` takes no more tokens."""
        if self._matcher is not None and token_id not in self._ends:
            self._matcher.check(token_id)

    def append(self, token_id: int) -> str:
        """Take the next generated token; returns its text and sets `finish_reason` if it ends.

        Where the grammar has found that no token may come, this one is not taken. NO_TOKEN, for any
        other reason, is the model's error.
        """
        if self._is_plain and token_id >= 0 and token_id not in self._ends:  # as nearly all
            self.tokens.append(token_id)
            delta = self._stream.push(token_id)
            if len(self.tokens) < self._most_tokens:
                self._deltas.append(delta)
                return delta
            return self._end(delta, "length")
        delta = ""
        if token_id == NO_TOKEN and self.error is None:
            self._not_finite, self._is_plain = LogitsNotFinite.at(len(self.tokens)), False
        reason: FinishReason | None = "error"
        if self.error is None:
            self.tokens.append(token_id)
            if self._logits_processor is not None:
                self._logits_processor.add(token_id)
            reason = self._ends.get(token_id)
            if reason is None:
                may_stop = len(self.tokens) > self._stops_behind
                delta = self._stream.push(token_id, may_stop=may_stop)
                reason = self._reason_after(token_id)
        if reason is not None:
            return self._end(delta, reason)
        self._deltas.append(delta)
        return delta

    def _end(self, delta: str, reason: FinishReason) -> str:
        """Finish; returns the last token's text, `delta`, and what was held back."""
        delta += self._stream.finish()
        if reason == "length" and self._stream.stop is not None:
            reason = "stop"
        self.finish_reason = reason
        self._deltas.append(delta)
        return delta

    def _reason_after(self, token_id: int) -> FinishReason | None:
        """The reason to finish after a token that is not an end token; None to go on."""
        matcher = self._matcher
        if matcher is not None:
            matcher.advance(token_id)
            if matcher.error is not None:
                return "error"
            if matcher.is_complete:
                return "stop"
        if self._stream.stop is not None:
            return "stop"
        return "length" if len(self.tokens) >= self._most_tokens else None

    @property
    def error(self) -> RoseError | None:
        """Why the grammar or the model cannot go on, if it cannot."""
        reason = self._matcher.error if self._matcher is not None else None
        return InvalidParameter(reason) if reason is not None else self._not_finite

    @property
    def stop(self) -> str | None:
        """The stop string that has ended it."""
        return self._stream.stop

    @property
    def tokens_left(self) -> int:
        """The most tokens that can come behind those that the host has."""
        return self._most_tokens - len(self.tokens)

    # The block table

    def blocks_wanted(self, tokens: int, block_size: int) -> int:
        """Blocks the table lacks to hold the first `tokens` tokens."""
        return max(0, -(-tokens // block_size) - len(self.blocks))

    @property
    def _reusable(self) -> int:
        """Tokens that may come from the cache."""
        return (self.num_scored if self.lacks_scores else self.num_known) - 1

    def awaits(self, other: InferenceSession, pool: BlockPool) -> int:
        """Tokens of this request's beginning, in full blocks, that `other` is about to offer; 0 if
        it has offered all that both begin with."""
        alike, end = 0, min(self._reusable, len(other.tokens))
        if end // pool.block_size <= len(other._serials) or self.cache_salt != other.cache_salt:
            return 0
        while alike < end:
            middle = (alike + end + 1) // 2
            if self.tokens[alike:middle] == other.tokens[alike:middle]:
                alike = middle
            else:
                end = middle - 1
        blocks = alike // pool.block_size
        return blocks * pool.block_size if blocks > len(other._serials) else 0

    def reuse_prefix(self, pool: BlockPool) -> int:
        """Start from cached blocks that hold this request's beginning; returns tokens found.

        The last known token is never taken from the cache: computing it gives the logits. Nor is
        one whose logits score the next.
        """
        self.blocks = pool.match(self.tokens, self._reusable, self.cache_salt)
        self._serials = [pool.serial(block) for block in self.blocks]
        self.computed = len(self.blocks) * pool.block_size
        self.state.begin(pool, self._serials[-1] if self._serials else None)
        if not self.admissions:  # later it finds what it has computed itself
            self.cached_tokens = min(self.computed, self.prompt_length)
        return self.computed

    def load_prefix(self, pool: BlockPool) -> int:
        """Read what the second tier has behind the cached blocks into the next ones of the table;
        returns tokens found. Behind `reuse_prefix`, with blocks for what is known."""
        reused = min(self._reusable, len(self.tokens))
        first, last = len(self._serials), reused // pool.block_size
        if pool.tier is None or first >= last:
            return 0
        records = [self._record(pool.tier, index) for index in range(first, last)]
        count = pool.tier.load(records, self.blocks[first:last], self.state.slot)
        for index in range(first, first + count):
            self._register(pool, index, None)
        self.computed += count * pool.block_size
        if count:
            self.state.loaded(pool, self._serials[-1])
        if not self.admissions:
            self.cached_tokens = min(self.computed, self.prompt_length)
        return count * pool.block_size

    def register_full_blocks(self, pool: BlockPool) -> None:
        """Offer blocks that have become full to later requests."""
        size, first = pool.block_size, len(self._serials)
        if self.computed < (first + 1) * size:  # as in nearly all steps
            return
        for index in range(first, min(self.computed, len(self.tokens)) // size):
            record = None if pool.tier is None else self._record(pool.tier, index)
            self._register(pool, index, record)
            self.state.register(pool, (index + 1) * size, self._serials[-1], record)

    def _register(self, pool: BlockPool, index: int, record: Record | None) -> None:
        parent: Parent = self._serials[-1] if self._serials else self.cache_salt
        tokens = self.tokens[index * pool.block_size : (index + 1) * pool.block_size]
        self._serials.append(pool.register(self.blocks[index], parent, tokens, record))

    def _record(self, tier: SecondTier, index: int) -> Record:
        """Of its full block `index`. A record follows from the tokens alone, so those that were
        made stay as they are."""
        size = tier.block_size
        for start in range(len(self._records) * size, (index + 1) * size, size):
            before = self._records[-1] if self._records else None
            tokens = self.tokens[start : start + size]
            self._records.append(tier.record(self.cache_salt, before, tokens))
        return self._records[index]

    def accept_drafts(self, pool: BlockPool, count: int) -> None:
        """The last step's first `count` drafts are the session's own tokens: they are computed."""
        self.computed += count
        self.state.accept(pool, count)
        if self.own_drafts is not None:
            self.own_drafts.record(count)

    def release_blocks(self, pool: BlockPool) -> None:
        """Give all blocks back, and with them everything computed. May be repeated."""
        self.state.release(pool)
        if self.own_drafts is not None:
            self.own_drafts.release()
        pool.release(self.blocks)
        self.blocks, self._serials, self.computed = block_table(), [], 0


def ends_of(params: SamplingParams, eos_token_ids: AbstractSet[int]) -> dict[int, FinishReason]:
    """The ids that end a request, and the reason that each of them is."""
    ends: dict[int, FinishReason] = dict.fromkeys(params.stop_token_ids, "stop")
    if not params.ignore_eos:
        ends.update(dict.fromkeys(eos_token_ids, "eos"))
    return ends
