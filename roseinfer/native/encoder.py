"""Whole texts through the layers of an encoder, in one call of the compiled library."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from roseinfer.kv_cache.cache import padded
from roseinfer.model.attention_layers import AttentionLayers
from roseinfer.model.families import Stack
from roseinfer.model.quantized_linears import QuantizedLinears
from roseinfer.native import library as c
from roseinfer.native.layers import NativeLayers
from roseinfer.native.shapes import head_shapes

_BLOCK_SIZE = c.PANEL_WIDTH


class NativeEncoder:
    """Each text attends to itself alone, and its numbers do not depend on the others. Not
    thread-safe."""

    def __init__(
        self,
        stack: Stack,
        layers: AttentionLayers,
        hidden_size: int,
        context: int,
        dtype: torch.dtype,
        quantized: QuantizedLinears | None = None,
    ) -> None:
        """`context`: tokens of the longest text. The weights of `stack`, or what is `quantized` of
        them, are taken over, until `restore`."""
        shapes = head_shapes(stack, layers)
        self._layers = NativeLayers(stack, layers, context, quantized)
        (epsilon,) = stack.epsilons
        self._struct = c.Model(
            head=c.Matrix(inputs=hidden_size),
            context=context,
            hidden=hidden_size,
            inner=self._layers.inner,
            block_size=_BLOCK_SIZE,
            cache_is_bfloat=dtype == torch.bfloat16,
            epsilon=epsilon,
            embedding_scale=1.0,
            **self._layers.fields,
        )
        # A layer is done with its keys and values before the next one begins.
        widths = [
            shape.kv_heads * width
            for shape in shapes
            for width in (shape.key_dim, padded(shape.value_dim, c.PANEL_WIDTH))
        ]
        self._block_elements = _BLOCK_SIZE * max(widths)
        self._keys = self._values = torch.empty(0, dtype=dtype)

    def restore(self) -> None:
        """Give the model its weights back; this object cannot be used any more."""
        self._layers.restore()

    def run(self, embedded: Tensor, lengths: Sequence[int]) -> Tensor:
        """The hidden states behind the last layer, float32 [tokens, width]. `embedded`, likewise,
        is what the first one reads: texts of these lengths, one behind the other."""
        embedded = embedded.contiguous()
        out = torch.empty_like(embedded)
        blocks = [-(-length // _BLOCK_SIZE) for length in lengths]
        self._make_room(sum(blocks))
        rows, threads = len(embedded), torch.get_num_threads()
        scratch = self._layers.scratch(self._struct, rows, max(lengths), threads)
        first = array("q", accumulate(lengths, initial=0))
        offsets = array("q", accumulate(blocks, initial=0))
        tables, kept = array("q", range(sum(blocks))), array("q", range(rows))
        computed = array("q", bytes(8 * len(lengths)))
        step = c.Step(
            first=c.address(first),
            computed=c.address(computed),
            tables=c.address(tables),
            table_offsets=c.address(offsets),
            kept=c.address(kept),
            embedded=embedded.data_ptr(),
            hidden=out.data_ptr(),
            scratch=scratch.data_ptr(),
            rows=rows,
            sequences=len(lengths),
            kept_rows=rows,
            table_entries=len(tables),
            threads=threads,
        )
        fault = c.library().rose_decode(self._struct, step)
        if fault:
            raise ValueError(f"the compiled encoder refused a batch: {c.FAULTS[fault]}")
        return out

    def _make_room(self, blocks: int) -> None:
        if blocks <= self._struct.blocks:
            return
        size, dtype = blocks * self._block_elements, self._keys.dtype
        # Zeros: what is behind a text's last key is multiplied by nothing.
        self._keys, self._values = (torch.zeros(size, dtype=dtype) for _ in range(2))
        self._struct.blocks = blocks
        for struct in self._layers.attention:
            struct.keys, struct.values = self._keys.data_ptr(), self._values.data_ptr()
