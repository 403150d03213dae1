"""The attention layers of transformers' models, run by our kernels."""

from collections.abc import Sequence

from torch import Tensor

from roseinfer.gpu.attention import AttentionParams, Pages, attend, write
from roseinfer.gpu.batch import DeviceBatch, DeviceCache
from roseinfer.kv_cache.cache import KVCache
from roseinfer.model.attention import AttentionCall, LayerState
from roseinfer.sessions.session import Chunk, DeviceTokens


class TritonAttention:
    """The attention layers of one model over one KV cache."""

    def __init__(self, cache: KVCache) -> None:
        self.batch: DeviceBatch | None = None
        self._cache = DeviceCache(cache)
        self.layers: list[LayerState] = [_TritonLayer(self, pages) for pages in self._cache.pages]

    def pack(self, chunks: Sequence[Chunk], device_tokens: DeviceTokens | None) -> DeviceBatch:
        return self._cache.pack(chunks, device_tokens)


class _TritonLayer:
    def __init__(self, owner: TritonAttention, pages: Pages) -> None:
        self._owner, self._pages = owner, pages

    def attend(self, call: AttentionCall) -> Tensor:
        batch = self._owner.batch
        if batch is None:
            raise RuntimeError("attention was called outside of an engine step")
        key, value, query = (part[0].transpose(0, 1) for part in (call.key, call.value, call.query))
        write(self._pages, key, value, batch.slots)
        params = AttentionParams(call.scaling, call.window, call.softcap, call.sinks)
        return attend(self._pages, query, batch.sequences, params).unsqueeze(0)
