"""A decoder of a common family, run by the compiled library on packed weights."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import c_int64, pointer
from typing import Any, NoReturn

import torch
from torch import Tensor

from roseinfer.kv_cache.block_pool import BlockPool
from roseinfer.kv_cache.cache import KVCache
from roseinfer.model.attention_layers import AttentionLayers
from roseinfer.model.families import (
    DraftParts,
    LayerInputs,
    Parts,
    find_parts,
)
from roseinfer.model.limits import model_type
from roseinfer.model.probe import probe_tokens
from roseinfer.model.quantized_linears import QuantizedLinears
from roseinfer.model.routes import FollowedRoutes
from roseinfer.native import library as c
from roseinfer.native.huge_pages import ask_for_huge_pages
from roseinfer.native.layers import NativeLayers, address_of
from roseinfer.native.shapes import find_misfit
from roseinfer.sessions.session import Chunk, DeviceTokens

_DRAFTED_IDS = 32_768  # a multiple of c.PANEL_WIDTH


def build_decoder(
    model: Any,
    layers: AttentionLayers,
    context: int,
    quantized: QuantizedLinears | None = None,
) -> NativeDecoder | str:
    """A decoder for `model`, contexts up to `context` tokens; or why it cannot be compiled.

    The decoder takes the weights of linear layers and embeddings over, one layer at a time: `model`
    cannot be run any more, until `restore`. Of linear layers in `quantized` it takes those.
    """
    if fault := c.fault_of(model):
        return fault
    parts = find_parts(model, layers)
    layers = layers.compacted()
    if parts is None:
        return f"it does not know this kind of {model_type(model)} model"
    misfit = find_misfit(parts, layers)
    if misfit is not None:
        return f"it does not hold this model: {misfit}"
    # The load probe's sequences may be longer than the requests that are allowed.
    return NativeDecoder(parts, layers, max(context, probe_tokens(model)), quantized)


class NativeDecoder:
    """Steps of packed batches, in one call each. Not thread-safe."""

    # Keys of a block, and values of a head, are padded to whole vectors.
    cache_padding = c.PANEL_WIDTH
    compacts = True
    runs_ahead = False
    batch_invariant = True

    def __init__(
        self,
        parts: Parts,
        layers: AttentionLayers,
        context: int,
        quantized: QuantizedLinears | None,
        drafts_for: NativeDecoder | None = None,
    ) -> None:
        """A model that drafts for another one has that one's embedding and head."""
        self._layers = NativeLayers(parts, layers, context, quantized)
        self._kv_layers = [part.kv_layer for part in parts.attention]
        self._replaced_ids = parts.replaced_ids
        self._struct = self._model(parts, context, drafts_for)
        self.hidden_size: int = self._struct.hidden
        self._vocabulary: int = self._struct.head.outputs
        self._cache: KVCache | None = None  # kept here, for the structures point into it

    # Setting up

    def _model(self, parts: Parts, context: int, drafts_for: NativeDecoder | None) -> c.Model:
        layers = self._layers
        if drafts_for is None:
            # Of a tied embedding the head's panels serve; another one stays the model's.
            weight = parts.embedding.weight
            embedding = None if parts.head.weight is weight else weight.detach()
            embedding = None if embedding is None else address_of(layers.keep(embedding))
            embedding_is_bfloat = weight.dtype == torch.bfloat16
            self._embedding_rows = len(weight)
        else:
            layers.kept.append(drafts_for)
            embedding = drafts_for._struct.embedding
            embedding_is_bfloat = drafts_for._struct.embedding_is_bfloat
            self._embedding_rows = drafts_for._embedding_rows
        positions = None
        if parts.positions is not None:
            positions = layers.keep(parts.positions.weight.detach()[:context].float())
            context = len(positions)
        scales = None if parts.query_scales is None else layers.keep(parts.query_scales(context))
        inputs, width = None, 0
        if parts.inputs is not None:
            inputs, width = pointer(self._inputs(parts.inputs)), parts.inputs.width
            self._embedding_rows = min(self._embedding_rows, len(parts.inputs.embedding.weight))
        if drafts_for is None:
            head = layers.weights.take([parts.head]).struct
        else:
            head = _first_ids(drafts_for._struct.head)
        drafts = None if parts.drafts is None else pointer(self._draft_inputs(parts.drafts))
        return c.Model(
            inputs=inputs,
            drafts=drafts,
            embedding=embedding,
            positions=address_of(positions),
            query_scales=address_of(scales),
            head=head,
            last=layers.norm(parts.last),
            embedding_is_bfloat=embedding_is_bfloat,
            embedding_rows=self._embedding_rows,
            context=context,
            hidden=head.inputs,
            inner=max(width, layers.inner),
            epsilon=parts.last.epsilon,
            embedding_scale=parts.embedding_scale,
            logit_softcap=parts.logit_softcap,
            **layers.fields,
        )

    def _draft_inputs(self, part: DraftParts) -> c.DraftInputs:
        inputs = c.DraftInputs(
            projection=self._layers.weights.take([part.projection]).struct,
            embedding=self._layers.norm(part.embedding),
            hidden=self._layers.norm(part.hidden),
        )
        self._layers.kept.append(inputs)
        return inputs

    def _inputs(self, part: LayerInputs) -> c.LayerInputs:
        inputs = c.LayerInputs(
            embedding=address_of(self._layers.keep(part.embedding.weight.detach())),
            projection=self._layers.weights.take([part.projection]).struct,
            norm=self._layers.norm(part.norm),
            width=part.width,
            embedding_scale=part.embedding_scale,
            projection_scale=part.projection_scale,
            scale=part.scale,
        )
        self._layers.kept.append(inputs)
        return inputs

    def restore(self) -> None:
        """Give the model its weights back; this decoder cannot be used any more."""
        self._layers.restore()

    @property
    def eager(self) -> NativeDecoder:
        return self

    def bind(self, cache: KVCache) -> None:
        """Use `cache`, made with `cache_padding`, from now on."""
        self._cache = cache
        self._struct.block_size, self._struct.blocks = cache.block_size, cache.num_blocks
        self._struct.cache_is_bfloat = (cache.keys or cache.inputs)[0].dtype == torch.bfloat16
        attention, mixers = self._layers.attention, self._layers.mixers
        for struct, keys, values in zip(attention, cache.keys, cache.values, strict=True):
            ask_for_huge_pages(keys)
            ask_for_huge_pages(values)
            struct.keys, struct.values = keys.data_ptr(), values.data_ptr()
        for struct, source in zip(attention, self._kv_layers, strict=True):
            if source is not None:
                struct.keys, struct.values = attention[source].keys, attention[source].values
        self._struct.slots = len(cache.inputs[0]) if mixers else 0
        for mixer, inputs, sums in zip(mixers, cache.inputs, cache.sums, strict=True):
            mixer.inputs, mixer.sums = inputs.data_ptr(), address_of(sums)

    # Steps

    def run(
        self,
        chunks: Sequence[Chunk],
        *,
        every_row: bool = False,
        device_tokens: DeviceTokens | None = None,  # noqa: ARG002 - never given: it does not run ahead
        routes: FollowedRoutes | None = None,
    ) -> tuple[list[Chunk], Tensor]:
        """Compute `chunks`; returns them in row order, and logits, float32.

        Logits are [S, V] for the S rows that the chunks want, or [T, V] for every row.
        """
        if self._cache is None:
            raise RuntimeError("a step was asked for before `bind` gave a cache")
        self._cache.copy_states()
        batch = Batch()
        for chunk in chunks:
            self._add(batch, chunk, self._cache.pool, every_row=every_row)
        hidden = None if every_row else self._room_for_hidden(chunks, batch)
        logits = self.compute(batch, hidden=hidden, routes=routes, chunks=chunks)
        return list(chunks), logits

    def _add(self, batch: Batch, chunk: Chunk, pool: BlockPool, *, every_row: bool) -> None:
        session = chunk.session
        ids = chunk.input_ids(None)
        if self._replaced_ids:
            ids = [self._replaced_ids.get(i, i) for i in ids]
        kept, logits = chunk.kept_rows, chunk.logit_rows
        if every_row:
            kept = logits = chunk.count
        before, known = session.computed, chunk.end - len(chunk.drafts)
        for tokens, slot in sorted(session.state.writes(pool, before, known)):
            batch.writes.extend((len(batch.computed), tokens - before - 1, slot))
        batch.slots.append(session.state.slot)
        batch.add(ids, before, session.blocks, kept=kept, logits=logits)

    def _room_for_hidden(self, chunks: Sequence[Chunk], batch: Batch) -> Tensor | None:
        """For the hidden states of kept rows; each chunk gets those that it wants."""
        if not any(chunk.hidden_rows for chunk in chunks):
            return None
        hidden, end = torch.empty(len(batch.kept), self.hidden_size), 0
        for chunk in chunks:
            end += chunk.kept_rows
            chunk.hidden = hidden[end - chunk.hidden_rows : end]
        return hidden

    def compute(
        self,
        batch: Batch,
        *,
        before: Tensor | None = None,
        hidden: Tensor | None = None,
        routes: FollowedRoutes | None = None,
        chunks: Sequence[Chunk] = (),
    ) -> Tensor:
        """One step; the logits [S, V] of the rows that want some.

        `hidden` [K, H] takes the hidden states of the K rows that the batch keeps. `before` [T, H]
        are those that a model which drafts goes on from. `routes` are those of `chunks`.
        """
        logits = torch.empty(len(batch.logit_indices), self._vocabulary)
        threads = torch.get_num_threads()
        rows = len(batch.ids)
        scratch = self._layers.scratch(self._struct, rows, batch.longest, threads)
        all_have_logits = len(batch.kept) == len(batch.logit_indices)
        step = c.Step(
            *(c.address(values) for values in (batch.ids, batch.first, batch.computed)),
            *(c.address(values) for values in (batch.tables, batch.table_offsets)),
            *(c.address(values) for values in (batch.slots, batch.writes, batch.kept)),
            None if all_have_logits else c.address(batch.logit_indices),
            None,
            address_of(before),
            address_of(hidden),
            logits.data_ptr(),
            scratch.data_ptr(),
            None,
            None,
            rows,
            len(batch.computed),
            len(batch.kept),
            len(batch.logit_indices),
            len(batch.tables),
            len(batch.writes) // 3,
            threads,
        )
        if routes is None:
            self._decode(step, batch)
        else:
            self._follow(routes, chunks, step, batch)
        return logits

    def _decode(self, step: c.Step, batch: Batch) -> None:
        fault = c.library().rose_decode(self._struct, step)
        if fault:
            self._refuse(fault, batch)

    def _follow(
        self, routes: FollowedRoutes, chunks: Sequence[Chunk], step: c.Step, batch: Batch
    ) -> None:
        choices, agreed = self._choices(routes, chunks), c_int64()
        step.routes, step.agreed = choices.data_ptr(), pointer(agreed)
        self._decode(step, batch)
        routes.count(choices.numel(), agreed.value)

    def _choices(self, routes: FollowedRoutes, chunks: Sequence[Chunk]) -> Tensor:
        choices = routes.choices(chunks).contiguous()
        wanted = [layer.experts.contents.chosen for layer in self._layers.structs if layer.experts]
        if [choices.shape[2]] * len(choices) != wanted:
            raise ValueError(f"routes of the shape {tuple(choices.shape)} for layers of {wanted}")
        return choices

    def _refuse(self, fault: int, batch: Batch) -> NoReturn:
        unknown = [i for i in batch.ids if not 0 <= i < self._embedding_rows]
        detail = f" (id {unknown[0]} of {self._embedding_rows} rows)" if unknown else ""
        raise ValueError(f"the compiled decoder refused a step: {c.FAULTS[fault]}{detail}")


class Batch:
    """The arrays of one step, see `struct Step` in types.h."""

    def __init__(self) -> None:
        self.ids, self.first, self.computed = array("q"), array("q", [0]), array("q")
        self.tables, self.table_offsets = array("q"), array("q")
        self.kept, self.logit_indices = array("q"), array("q")
        self.slots, self.writes = array("q"), array("q")
        self.longest = 0

    def add(
        self, ids: Sequence[int], computed: int, table: Sequence[int], *, kept: int, logits: int
    ) -> None:
        """A sequence's next tokens. Of its rows the last `kept` leave the last layer, and of these
        the last `logits` have logits."""
        self.ids.extend(ids)
        rows = len(self.ids)
        self.first.append(rows)
        self.computed.append(computed)
        self.table_offsets.append(len(self.tables))
        self.tables.extend(table)
        self.longest = max(self.longest, computed + len(ids))
        self.kept.extend(range(rows - kept, rows))
        self.logit_indices.extend(range(len(self.kept) - logits, len(self.kept)))


def _first_ids(head: c.Matrix) -> c.Matrix:
    """The panels of the first ids only. Tokenizers number what they have merged in the order of how
    often it came, so these are nearly all that texts are made of; a draft that is missed costs a
    row, and the whole head would cost far more."""
    count = head.outputs if head.next else min(head.outputs, _DRAFTED_IDS)
    return c.Matrix(head.panels, head.bias, head.next, count, head.inputs, head.type)
