"""A KV cache as the kernels use it."""

from __future__ import annotations

from collections.abc import Sequence

from roseinfer.batch import Chunk, DeviceTokens
from roseinfer.gpu.attention import Pages
from roseinfer.gpu.batch import DeviceBatch, pack
from roseinfer.kv_cache import KVCache


class DeviceCache:
    """The pages of every layer, and how steps over them are laid out."""

    def __init__(self, cache: KVCache, flash: bool = False) -> None:
        """`flash` leaves the attention of prefill to FlashInfer."""
        self._block_size, self._device = cache.block_size, cache.keys[0].device
        self.pages = [
            Pages(keys, values, cache.block_size)
            for keys, values in zip(cache.keys, cache.values, strict=True)
        ]
        self._flash = None
        if flash:
            from roseinfer.gpu.flash import FlashPrefill  # an optional package

            self._flash = FlashPrefill(self._block_size, self._device)

    def pack(self, chunks: Sequence[Chunk], device_tokens: DeviceTokens | None) -> DeviceBatch:
        return pack(chunks, self._block_size, self._device, device_tokens, self._flash)
