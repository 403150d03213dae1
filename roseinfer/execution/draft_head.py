"""A model's own head for the tokens behind the next: it drafts, and the model verifies.

Trained with the model (DeepSeek V3 describes it, section 2.2), it is one layer like the model's. Of
the hidden states behind one token, and of the token that follows, it makes hidden states like those
behind the second, so from these the model's own matrix makes logits for a third. What it makes goes
in again for the token after that.

What it drafts decides how soon a token comes, never which. So the head sees only the last tokens of
a sequence, numbers positions from where it began, has a small cache of its own that outlives
nothing, and reads only the first of the vocabulary's ids.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rose.errors import UnsupportedModel
from roseinfer.checkpoints.draft_layer import DraftLayer
from roseinfer.kv_cache.cache import KVCache
from roseinfer.model.attention_layers import AttentionLayers, find_layers
from roseinfer.model.families import Parts, draft_parts
from roseinfer.model.quantization import FROM_FILE, quantize_model
from roseinfer.model.quantized_linears import QuantizedLinears
from roseinfer.native.decoder import Batch, NativeDecoder
from roseinfer.native.shapes import find_misfit
from roseinfer.sampling.sampler import sample_tokens
from roseinfer.sessions.own_drafts import MAX_OWN_DRAFTS, WINDOW, OwnDrafts
from roseinfer.sessions.session import InferenceSession, SamplingRequest

_logger = logging.getLogger(__name__)

_SLOTS = 64  # sequences that draft at once
_BLOCK_SIZE = 16
#: A sequence's blocks are a ring: what it sees, what it reads at once, and drafts.
_BLOCKS_EACH = (2 * WINDOW + MAX_OWN_DRAFTS) // _BLOCK_SIZE + 2

Counts = Mapping[InferenceSession, int]


@dataclass(frozen=True, slots=True)
class FoundHead:
    """A head whose model has not been taken over yet."""

    model: Any
    parts: Parts
    layers: AttentionLayers
    weights: str | None

    @classmethod
    def of(cls, layer: DraftLayer, weights: str | None) -> FoundHead | str:
        """Or why it is of no use. Its matrices are brought to the format `weights`, if that makes
        others."""
        try:
            layers = find_layers(layer.model)
        except UnsupportedModel as error:
            return str(error)
        parts = draft_parts(layer.model, layers, layer.projection, layer.embedding, layer.hidden)
        layers = layers.compacted()
        if parts is None:
            return "its kind is not known"
        if misfit := find_misfit(parts, layers):
            return misfit
        calls = [replace(layers.calls[0], window=min(layers.calls[0].window or WINDOW, WINDOW))]
        return cls(layer.model, parts, replace(layers, calls=calls), weights)

    def quantized(self) -> QuantizedLinears | None:
        """Plain matrices of 16 bits are brought to 8: a pass reads half as much, and drafts that
        are less like the model's tokens are as good. None for float32, and where these cannot be
        brought to the format."""
        plain = None if self.model.dtype == torch.float32 else "int8"
        weights = {None: plain, FROM_FILE: "int8"}.get(self.weights, self.weights)
        if weights is None:
            return None
        taken = QuantizedLinears()
        try:
            return quantize_model(self.model, self.parts, weights, taken)
        except UnsupportedModel as error:
            _logger.info("the layer for further tokens keeps its weights: %s", error)
            taken.restore()
            return None


class DraftHead:
    """Drafts of all sessions that want some, a pass for each further token."""

    def __init__(self, found: FoundHead, model: NativeDecoder, context: int) -> None:
        parts, layers = found.parts, found.layers
        dtype = parts.embedding.weight.dtype
        self._decoder = NativeDecoder(parts, layers, context, found.quantized(), drafts_for=model)
        cache = KVCache(
            layers.shapes,
            1 + _SLOTS * _BLOCKS_EACH,
            _BLOCK_SIZE,
            device=torch.device("cpu"),
            dtype=dtype,
            padding=self._decoder.cache_padding,
        )
        self._decoder.bind(cache)
        self._slots = list(range(_SLOTS))

    def begin(self) -> OwnDrafts:
        """For a new session."""
        return OwnDrafts(self._slots)

    def draft(self, counts: Counts) -> dict[InferenceSession, tuple[int, ...]]:
        """So many tokens, from 1 to MAX_OWN_DRAFTS, for each of these sessions, which are ready."""
        drafts: dict[InferenceSession, list[int]] = {session: [] for session in counts}
        sessions, hidden = list(counts), self._read(drafts)
        for further in range(1, max(counts.values())):
            going_on = [n for n, session in enumerate(sessions) if counts[session] > further]
            sessions, hidden = [sessions[n] for n in going_on], hidden[going_on]
            hidden = self._go_on(sessions, drafts, hidden)
        return {session: tuple(ids) for session, ids in drafts.items()}

    def _read(self, drafts: dict[InferenceSession, list[int]]) -> Tensor:
        """The first draft of each, behind what it has not read yet."""
        batch, rows = Batch(), list[Tensor]()
        for session in drafts:
            own = _own(session)
            first, unread = own.read()
            ids = session.tokens[first + 1 : first + 1 + len(unread)]
            batch.add(ids, own.length - len(unread), _table(own), kept=1, logits=1)
            rows.append(unread)
        return self._pass(batch, torch.cat(rows), drafts)

    def _go_on(
        self,
        sessions: list[InferenceSession],
        drafts: dict[InferenceSession, list[int]],
        hidden: Tensor,
    ) -> Tensor:
        batch = Batch()
        for session in sessions:
            own, made = _own(session), drafts[session]
            position = own.length + len(made) - 1
            batch.add(made[-1:], position, _table(own, len(made)), kept=1, logits=1)
        return self._pass(batch, hidden, {session: drafts[session] for session in sessions})

    def _pass(
        self, batch: Batch, before: Tensor, drafts: Mapping[InferenceSession, list[int]]
    ) -> Tensor:
        hidden = torch.empty(len(drafts), self._decoder.hidden_size)
        logits = self._decoder.compute(batch, before=before, hidden=hidden)
        requests = [
            SamplingRequest(session.params, session.num_generated + len(made))
            for session, made in drafts.items()
        ]
        tokens = sample_tokens(logits, requests).tolist()
        for made, token in zip(drafts.values(), tokens, strict=True):
            made.append(max(token, 0))
        return hidden


def _own(session: InferenceSession) -> OwnDrafts:
    if session.own_drafts is None:
        raise RuntimeError("drafts were asked for of a session that was not begun with the head")
    return session.own_drafts


def _table(own: OwnDrafts, further: int = 0) -> list[int]:
    """The blocks of a sequence: those beyond its window are used again."""
    if own.slot is None:
        raise RuntimeError("drafts were asked for of a session that is not ready")
    first = 1 + own.slot * _BLOCKS_EACH
    count = -(-(own.length + further) // _BLOCK_SIZE)
    return [first + number % _BLOCKS_EACH for number in range(count)]
