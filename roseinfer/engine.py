"""The inference engine: a model, its tokenizer, its KV cache, and forward passes over sessions."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rose.errors import ConfigurationError, InvalidParameter, PromptTooLong
from rose.sampling import SamplingParams
from roseinfer import limits, tokenization
from roseinfer.attention import IMPLEMENTATION
from roseinfer.batch import Chunk
from roseinfer.detokenizer import Detokenizer
from roseinfer.gpu.memory import CudaMeter, cache_bytes
from roseinfer.gpu.options import GpuOptions
from roseinfer.grammars import GrammarCompiler
from roseinfer.kv_cache import KVCache
from roseinfer.loading import load_model, load_tokenizer, parse_device, parse_dtype
from roseinfer.logits_processors import LogitsProcessor
from roseinfer.probe import find_layers
from roseinfer.runners import build_runner
from roseinfer.sampled_tokens import SampledTokens
from roseinfer.scheduler import OfflineScheduler, Scheduler
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
    """How the KV cache is cut: `tokens` None takes a share of free memory."""

    block_size: int = 16
    tokens: int | None = None
    max_context: int | None = None


class InferenceEngine:
    """A causal language model ready to generate.

    Attributes: `model` and `tokenizer` are transformers' own (the tokenizer may be None: token ids
    only); `context_length` is the most tokens, prompt and output together, that a request may
    have; `max_bytes_per_token` the most bytes of prompt that one token can stand for, where that is
    certain. Not thread-safe, but for `encode`, `encode_chat` and `new_session`.
    """

    def __init__(
        self,
        checkpoint_path: str | Path | None = None,
        tokenizer_name: str | None = None,
        *,
        device: str | None = None,
        dtype: str | None = None,
        block_size: int = 16,
        kv_cache_tokens: int | None = None,
        max_context: int | None = None,
        gpu: GpuOptions | None = None,
    ) -> None:
        """Load a folder or a hub name; None loads the built-in model.

        `device` None is CUDA where there is one. `dtype` None is float32 on CPU and the
        checkpoint's own on CUDA. `kv_cache_tokens` None takes a share of the free memory.

        Raises ModelNotFound, UnsupportedModel and ConfigurationError.
        """
        source = str(checkpoint_path) if checkpoint_path is not None else _built_in_model()
        place = parse_device(device)
        model = load_model(source, place, parse_dtype(dtype, place))
        tokenizer = load_tokenizer(tokenizer_name or source)
        name = Path(source).name if checkpoint_path is not None else "built-in"
        cache = CacheOptions(block_size, kv_cache_tokens, max_context)
        self._set_up(model, tokenizer, name, cache, gpu or GpuOptions())

    @classmethod
    def from_model(
        cls,
        model: Any,
        tokenizer: Any | None = None,
        *,
        model_name: str | None = None,
        block_size: int = 16,
        kv_cache_tokens: int | None = None,
        max_context: int | None = None,
        gpu: GpuOptions | None = None,
    ) -> InferenceEngine:
        """An engine for a model that is already in memory, on the device it is on.

        The engine takes the model over: its attention implementation is replaced by the engine's,
        and on CPU its linear layers by ones with packed weights. Where the compiled decoder runs
        it, the model itself cannot be called any more.
        """
        engine = cls.__new__(cls)
        model.eval().set_attn_implementation(IMPLEMENTATION)
        name = model_name or limits.model_type(model)
        cache = CacheOptions(block_size, kv_cache_tokens, max_context)
        engine._set_up(model, tokenizer, name, cache, gpu or GpuOptions())
        return engine

    def _set_up(
        self,
        model: Any,
        tokenizer: Any | None,
        name: str,
        options: CacheOptions,
        gpu: GpuOptions,
    ) -> None:
        self.model, self.tokenizer, self.model_name = model, tokenizer, name
        self.device: torch.device = model.device
        self.vocab_size = limits.vocab_size(model)
        self.eos_token_ids = limits.eos_token_ids(model, tokenizer)
        self.max_bytes_per_token = tokenization.max_bytes_per_token(tokenizer)
        self._detokenizer = Detokenizer(tokenizer.backend_tokenizer if tokenizer else None)
        self._grammars = GrammarCompiler(tokenizer, self.vocab_size, self.eos_token_ids)
        # First: what has no such layers may have no context length either.
        layers = find_layers(model)
        context = limits.context_length(model, options.max_context)
        self._runner, self.decoder_description = build_runner(model, layers, context, gpu)

        def make_cache(blocks: int) -> KVCache:
            padding, dtype = self._runner.cache_padding, model.dtype
            kind = {"device": self.device, "dtype": dtype, "padding": padding}
            return KVCache(layers.shapes, blocks, options.block_size, **kind)

        tokens = options.tokens
        if tokens is None:
            per_token = layers.bytes_per_token(model.dtype)
            if self.device.type == "cuda":
                meter = CudaMeter(self.device)
                room = cache_bytes(meter, self._runner.eager, make_cache, gpu, context)
                tokens = room // per_token
            else:
                tokens = limits.default_cache_tokens(per_token, context)
        self.cache = make_cache(_num_blocks(tokens, options.block_size))
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

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation (`role` and `content` each), ready for the answer.

        Raises InvalidParameter if the model has no chat template or it refuses the messages.
        """
        return tokenization.encode_chat(self.tokenizer, messages)

    def new_session(
        self,
        prompt: str | Sequence[int],
        *,
        request_id: str | None = None,
        params: SamplingParams | None = None,
        generated_ids: Sequence[int] = (),
    ) -> InferenceSession:
        """A session for `prompt` (text or token ids), holding no blocks yet.

        It touches nothing that a step changes, so one thread may prepare sessions while another
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
        if not params.adjusts:
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

        `after` drew the tokens that the host does not know yet. The sessions' block tables must
        cover the chunks. Sessions are not changed: their `computed` is for the caller to advance.
        """
        if not chunks:
            return StepLogits([], torch.empty(0, self.vocab_size))
        device_tokens = after.device_tokens if after is not None and after.sessions else None
        order, logits = self._runner.run(chunks, device_tokens=device_tokens)
        return StepLogits([c.session for c in order if c.is_last], logits)

    @torch.inference_mode()
    def sample(self, logits: StepLogits) -> SampledTokens:
        """Draw the next token of each session that has logits; waits for nothing."""
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

    # Whole requests

    def generate(self, prompt: str | Sequence[int], params: SamplingParams | None = None) -> str:
        """The text generated after `prompt`."""
        return "".join(self.stream_generate(prompt, params))

    def stream_generate(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None
    ) -> Iterator[str]:
        """The text generated after `prompt`, piece by piece. Closing the iterator frees it."""
        for _, piece in self.stream_generate_batch([prompt], params):
            yield piece

    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        params: SamplingParams | None = None,
        *,
        max_batch_size: int = 32,
    ) -> list[str]:
        """The text generated after each of `prompts`, in their order."""
        texts = [""] * len(prompts)
        for index, piece in self.stream_generate_batch(
            prompts, params, max_batch_size=max_batch_size
        ):
            texts[index] += piece
        return texts

    def stream_generate_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        params: SamplingParams | None = None,
        *,
        max_batch_size: int = 32,
    ) -> Iterator[tuple[int, str]]:
        """Pieces of text as they become certain, each with the index of its prompt.

        Raises InvalidParameter also where a grammar turns out to be too complex on the way.
        """
        scheduler: Scheduler = OfflineScheduler(self, max_batch_size)
        index = {
            scheduler.add_request(prompt, params=params): i for i, prompt in enumerate(prompts)
        }
        try:
            while scheduler.has_unfinished():
                for output in scheduler.advance():
                    if output.error is not None:
                        raise InvalidParameter(output.error)
                    if output.text:
                        yield index[output.request_id], output.text
        finally:
            for request_id in index:
                scheduler.abort(request_id)


def _built_in_model() -> str:
    """Where the model that comes with the package lies."""
    from roseinfer.demo_model import MODEL_PATH

    return str(MODEL_PATH)


def _num_blocks(tokens: int, block_size: int) -> int:
    """Blocks for `tokens` tokens, and the reserved one. Raises ConfigurationError."""
    if block_size < 1:
        raise ConfigurationError(f"block_size={block_size} must be at least 1")
    if tokens < 2:
        raise ConfigurationError(f"kv_cache_tokens={tokens} must be at least 2")
    return 1 + -(-tokens // block_size)
