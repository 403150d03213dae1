"""Sessions and forward passes over one model: what a scheduler drives."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roseinfer.checkpoints.loading import LoadedModel
from roseinfer.execution.cache_size import CacheOptions, make_cache, max_cached_tokens
from roseinfer.execution.draft_head import DraftHead, FoundHead
from roseinfer.execution.runners import build_runner
from roseinfer.execution.second_tier import add_second_tier
from roseinfer.gpu.options import GpuOptions
from roseinfer.model import limits
from roseinfer.model.attention_layers import find_layers
from roseinfer.native import NativeDecoder
from roseinfer.sampling.sampler import SampledTokens
from roseinfer.sessions.factory import SessionFactory
from roseinfer.sessions.session import Chunk

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepLogits:
    """Logits [S, V] after a forward pass: those that each of `chunks` wants, in their order.

    `values` may have more rows than they want: padding, at the end.
    """

    chunks: list[Chunk]
    values: Tensor


class EngineCore(SessionFactory):
    """A model with its tokenizer, its KV cache and what runs it.

    `model` is transformers' own. Not thread-safe, but for what makes sessions.
    """

    def __init__(self, loaded: LoadedModel, options: CacheOptions, gpu: GpuOptions) -> None:
        model = loaded.model
        self.model, self.model_name, self.fingerprint = model, loaded.name, loaded.fingerprint
        self.device: torch.device = model.device
        # Before the context length, which a model without attention layers may lack.
        layers = find_layers(model)
        allowed = limits.context_length(model, options.max_context)
        # A runner has tables for each position: none for millions that the cache cannot hold.
        context = min(allowed, max_cached_tokens(loaded, layers, allowed, options))
        head = (
            None if loaded.draft_layer is None else FoundHead.of(loaded.draft_layer, loaded.weights)
        )
        self._runner, self.decoder_description = build_runner(
            model, layers, context, gpu, loaded.weights, loaded.taken
        )
        self.cache = make_cache(self._runner, loaded, layers, context, options, gpu)
        self._runner.bind(self.cache)
        self.draft_head = self._with_draft_head(head, context)
        self.second_tier = add_second_tier(
            self.cache, loaded, self.decoder_description, context, options.second_tier
        )
        vocabulary = limits.vocab_size(model)
        # A request never outgrows the cache, so the oldest one can always go on.
        super().__init__(
            loaded.tokenizer,
            vocab_size=vocabulary,
            eos_token_ids=limits.eos_token_ids(model, loaded.tokenizer, vocabulary),
            context_length=min(context, self.cache.pool.total * options.block_size),
        )
        if self.context_length < allowed:
            _logger.warning(
                "the KV cache holds %d tokens: requests end there, not at the model's %d",
                self.context_length,
                allowed,
            )

    def _with_draft_head(self, head: FoundHead | str | None, context: int) -> DraftHead | None:
        """What drafts for sessions, if the model has it and the compiled decoder runs the model."""
        if isinstance(head, FoundHead) and isinstance(self._runner, NativeDecoder):
            _logger.info("the model's own layer for further tokens drafts")
            return DraftHead(head, self._runner, context)
        if head is not None:
            reason = head if isinstance(head, str) else "the compiled decoder does not serve"
            _logger.warning("no drafts of the model's own: %s", reason)
        return None

    # Forward passes

    @property
    def runs_ahead(self) -> bool:
        """Whether a step can begin before the host has the tokens of the last."""
        return self._runner.runs_ahead

    @property
    def batch_invariant(self) -> bool:
        """Whether a token's logits are the same bits with whatever tokens it is computed."""
        return self._runner.batch_invariant

    def forward(self, chunks: Sequence[Chunk], after: SampledTokens | None = None) -> StepLogits:
        """Compute the KV of `chunks` and the logits that they want.

        `after` holds the tokens that the host does not know yet. The sessions' block tables must
        cover the chunks. The caller advances the sessions' `computed`.
        """
        if not chunks:
            return StepLogits([], torch.empty(0, self.vocab_size))
        device_tokens = after.device_tokens if after is not None and after.sessions else None
        order, logits = self._runner.run(chunks, device_tokens=device_tokens)
        return StepLogits([chunk for chunk in order if chunk.logit_rows], logits)

    @torch.inference_mode()
    def sample(self, logits: StepLogits) -> SampledTokens:
        """Sample the next token of each session whose last token is computed, and the ones behind
        its drafts; score the prompts that want it. The host does not wait."""
        return SampledTokens(logits.chunks, logits.values)
