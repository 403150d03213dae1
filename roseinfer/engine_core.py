"""Sessions and forward passes over one model: what a scheduler drives."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rose.errors import ConfigurationError, InvalidParameter, PromptTooLong
from rose.sampling import SamplingParams
from roseinfer import limits, tokenization
from roseinfer.batch import Chunk
from roseinfer.detokenizer import Detokenizer
from roseinfer.gpu.memory import CudaMeter, cache_bytes
from roseinfer.gpu.options import GpuOptions
from roseinfer.grammars import GrammarCompiler
from roseinfer.kv_cache import KVCache
from roseinfer.loading import LoadedModel
from roseinfer.logits_processors import LogitsProcessor
from roseinfer.model import Runner
from roseinfer.probe import AttentionLayers, find_layers
from roseinfer.runners import build_runner
from roseinfer.sampled_tokens import SampledTokens
from roseinfer.session import InferenceSession, ends_of

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepLogits:
    """Logits [S, V] of the S `sessions` whose next token can be sampled after a forward pass.

    `values` may have more rows than sessions: padding, at the end.
    """

    sessions: list[InferenceSession]
    values: Tensor


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """How large the KV cache is: `tokens` None takes a share of the free memory."""

    block_size: int = 16
    tokens: int | None = None
    max_context: int | None = None


class EngineCore:
    """A model with its tokenizer, its KV cache and what runs it.

    `model` and `tokenizer` are transformers' own; the tokenizer may be None: token ids only.
    `context_length` is the most tokens, prompt and output together, that a request may have.
    `max_bytes_per_token` is the most bytes of prompt that one token can stand for, where that is
    certain. Not thread-safe, but for `encode`, `encode_chat` and `new_session`.
    """

    def __init__(self, loaded: LoadedModel, options: CacheOptions, gpu: GpuOptions) -> None:
        model, tokenizer = loaded.model, loaded.tokenizer
        self.model, self.tokenizer, self.model_name = model, tokenizer, loaded.name
        self.fingerprint = loaded.fingerprint
        self.device: torch.device = model.device
        self.vocab_size = limits.vocab_size(model)
        self.eos_token_ids = limits.eos_token_ids(model, tokenizer)
        self.max_bytes_per_token = tokenization.max_bytes_per_token(tokenizer)
        self._detokenizer = Detokenizer(tokenizer.backend_tokenizer if tokenizer else None)
        self._grammars = GrammarCompiler(tokenizer, self.vocab_size, self.eos_token_ids)
        # Before the context length, which a model without attention layers may lack.
        layers = find_layers(model)
        context = limits.context_length(model, options.max_context)
        self._runner, self.decoder_description = build_runner(model, layers, context, gpu)
        self.cache = _make_cache(self._runner, loaded, layers, context, options, gpu)
        self._runner.bind(self.cache)
        # A request never outgrows the cache, so the oldest one can always go on.
        self.context_length = min(context, self.cache.pool.total * options.block_size)
        if self.context_length < context:
            _logger.warning(
                "the KV cache holds %d tokens: requests end there, not at the model's %d",
                self.context_length,
                context,
            )

    # Sessions

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt. Raises InvalidParameter without a tokenizer."""
        return tokenization.encode(self.tokenizer, text)

    @property
    def has_chat_template(self) -> bool:
        return bool(tokenization.chat_template(self.tokenizer))

    def token_bytes(self) -> list[bytes] | None:
        """The bytes of each token of the tokenizer by its id, special ones as their names; None if
        there is no tokenizer, or an unusual one. Takes up to a second; any thread may call it."""
        return self._grammars.token_bytes()

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Token ids of a conversation (`role` and `content` each), ready for the answer.

        Raises InvalidParameter if the model has no chat template or it refuses the messages.
        """
        return tokenization.encode_chat(self.tokenizer, messages, tools)

    def new_session(
        self,
        prompt: str | Sequence[int],
        *,
        request_id: str | None = None,
        params: SamplingParams | None = None,
        generated_ids: Sequence[int] = (),
    ) -> InferenceSession:
        """A session for `prompt` (text or token ids), holding no blocks yet.

        It reads nothing that a step changes, so one thread may prepare sessions while another runs
        steps.

        Raises PromptTooLong if no token fits after the prompt, and InvalidParameter for an empty
        prompt, ids outside the vocabulary, a grammar that cannot be compiled or that
        `generated_ids` do not follow, and stop strings or a grammar without a tokenizer.
        """
        params = (params or SamplingParams()).seeded()
        prompt_ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self._check_prompt(prompt_ids)
        self._check_ids("generated_ids", generated_ids)
        if params.stop and self.tokenizer is None:
            raise InvalidParameter("stop needs a tokenizer: use stop_token_ids instead")
        self._check_ids("logit_bias", [token_id for token_id, _ in params.logit_bias])
        session = InferenceSession(
            request_id if request_id is not None else uuid.uuid4().hex,
            prompt_ids,
            params,
            self._detokenizer.stream(prompt_ids, params.stop),
            generated_ids=generated_ids,
            eos_token_ids=self.eos_token_ids,
            logits_processor=self._logits_processor(params, prompt_ids),
            context_length=self.context_length,
        )
        if session.error is not None:
            raise InvalidParameter(session.error)
        return session

    def _logits_processor(
        self, params: SamplingParams, prompt_ids: Sequence[int]
    ) -> LogitsProcessor | None:
        grammar = params.constraint
        if not params.needs_logits_processor:
            return None
        return LogitsProcessor(
            params,
            prompt_ids,
            ends=[i for i in ends_of(params, self.eos_token_ids) if i < self.vocab_size],
            matcher=self._grammars.compile(grammar) if grammar is not None else None,
        )

    def _check_prompt(self, prompt_ids: Sequence[int]) -> None:
        if not prompt_ids:
            raise InvalidParameter("the prompt is empty: it must have at least one token")
        if len(prompt_ids) >= self.context_length:
            raise PromptTooLong(
                f"the prompt has {len(prompt_ids)} tokens, which leaves no room in a context of "
                f"{self.context_length}: send at most {self.context_length - 1}"
            )
        self._check_ids("prompt", prompt_ids)

    def _check_ids(self, name: str, ids: Sequence[int]) -> None:
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise InvalidParameter(
                    f"{name} holds the token id {token_id}: ids run from 0 to {self.vocab_size - 1}"
                )

    # Forward passes

    @property
    def runs_ahead(self) -> bool:
        """Whether a step can begin before the host has the tokens of the last."""
        return self._runner.runs_ahead

    def forward(self, chunks: Sequence[Chunk], after: SampledTokens | None = None) -> StepLogits:
        """Compute the KV of `chunks` and the logits of those that reach their last token.

        `after` holds the tokens that the host does not know yet. The sessions' block tables must
        cover the chunks. The caller advances the sessions' `computed`.
        """
        if not chunks:
            return StepLogits([], torch.empty(0, self.vocab_size))
        device_tokens = after.device_tokens if after is not None and after.sessions else None
        order, logits = self._runner.run(chunks, device_tokens=device_tokens)
        return StepLogits([c.session for c in order if c.is_last], logits)

    @torch.inference_mode()
    def sample(self, logits: StepLogits) -> SampledTokens:
        """Sample the next token of each session that has logits. The host does not wait."""
        return SampledTokens(logits.sessions, logits.values[: len(logits.sessions)])

    def decode_step_sessions(self, sessions: Sequence[InferenceSession]) -> list[int]:
        """Bring `sessions` up to date in one forward pass and append a token to each.

        For callers that schedule by themselves: it computes all pending tokens at once and takes
        blocks as needed. Release them with `session.release_blocks(engine.cache.pool)`. Raises
        InvalidParameter for a finished session, CacheExhausted if blocks run out.
        """
        pool = self.cache.pool
        for session in sessions:
            if session.finished:
                raise InvalidParameter(f"session {session.request_id!r} is finished")
            session.blocks += pool.allocate(
                session.blocks_wanted(session.num_known, pool.block_size)
            )
        chunks = [Chunk(session, session.num_pending) for session in sessions]
        sampled = self.sample(self.forward(chunks)).wait()
        for session in sessions:
            session.computed = session.num_known
            session.register_full_blocks(pool)
            session.append(sampled[session].token_id)
        return [sampled[session].token_id for session in sessions]


def _make_cache(
    runner: Runner,
    loaded: LoadedModel,
    layers: AttentionLayers,
    context: int,
    options: CacheOptions,
    gpu: GpuOptions,
) -> KVCache:
    """A cache for `runner`; raises ConfigurationError where none fits."""
    device, dtype = loaded.model.device, loaded.model.dtype
    make: Callable[[int], KVCache] = partial(
        KVCache,
        layers.shapes,
        block_size=options.block_size,
        device=device,
        dtype=dtype,
        padding=runner.cache_padding,
    )
    tokens, bytes_per_token = options.tokens, layers.bytes_per_token(dtype)
    if tokens is None and device.type == "cuda":
        size = cache_bytes(CudaMeter(device), runner.eager, make, gpu, context)
        tokens = size // bytes_per_token
    elif tokens is None:
        tokens = limits.default_cache_tokens(bytes_per_token, context)
    return make(_num_blocks(tokens, options.block_size))


def _num_blocks(tokens: int, block_size: int) -> int:
    """Blocks for `tokens` tokens, and the reserved one. Raises ConfigurationError."""
    if block_size < 1:
        raise ConfigurationError(f"block_size={block_size} must be at least 1")
    if tokens < 2:
        raise ConfigurationError(f"kv_cache_tokens={tokens} must be at least 2")
    return 1 + -(-tokens // block_size)
