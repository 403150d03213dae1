"""The inference engine: loads a model and generates with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rose.sampling import SamplingParams
from roseinfer.checkpoints.loading import LoadedModel, load
from roseinfer.execution.cache_size import CacheOptions
from roseinfer.execution.engine_core import EngineCore
from roseinfer.gpu.options import GpuOptions
from roseinfer.kv_cache.second_tier import SecondTierOptions
from roseinfer.model import limits
from roseinfer.model.attention import IMPLEMENTATION
from roseinfer.scheduling.scheduler import OfflineScheduler


class InferenceEngine(EngineCore):
    """A causal language model ready to generate."""

    def __init__(
        self,
        checkpoint_path: str | Path | None = None,
        tokenizer_name: str | None = None,
        *,
        device: str | None = None,
        dtype: str | None = None,
        weights: str | None = None,
        block_size: int = 16,
        kv_cache_tokens: int | None = None,
        max_context: int | None = None,
        second_tier: SecondTierOptions | None = None,
        gpu: GpuOptions | None = None,
        own_drafts: bool = False,
        loaded: LoadedModel | None = None,
    ) -> None:
        """Load a folder, a GGUF file or a hub name; None loads the built-in model.

        `device` None is CUDA where there is one. `dtype` None is float32 on CPU and the
        checkpoint's own on CUDA. `weights` None leaves the checkpoint's; "int8" and "int4" make
        others, "file" keeps those of a quantized file as they lie in it: all three are for the
        compiled decoder on a CPU, with bfloat16 beside them. `kv_cache_tokens` None takes a
        share of the free memory. `second_tier` keeps cached prefixes in files too, where the cache
        is in main memory. With `own_drafts` a checkpoint's layer for further tokens is loaded too,
        for schedulers with speculation. What main memory cannot hold is refused before it is read.
        With a model that is `loaded` already nothing is loaded; see `from_model`.

        Raises ModelNotFound, UnsupportedModel and ConfigurationError.
        """
        super().__init__(
            loaded
            or load(
                *(checkpoint_path, tokenizer_name, device, dtype, weights, kv_cache_tokens),
                own_drafts=own_drafts,
            ),
            CacheOptions(block_size, kv_cache_tokens, max_context, second_tier),
            gpu or GpuOptions(),
        )

    @classmethod
    def from_model(
        cls,
        model: Any,
        tokenizer: Any | None = None,
        *,
        model_name: str | None = None,
        weights: str | None = None,
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
        model.eval().set_attn_implementation(IMPLEMENTATION)
        return cls(
            loaded=LoadedModel(
                model, tokenizer, model_name or limits.model_type(model), weights=weights
            ),
            block_size=block_size,
            kv_cache_tokens=kv_cache_tokens,
            max_context=max_context,
            gpu=gpu,
        )

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

        Raises InvalidParameter also where a grammar turns out to be too complex on the way, and
        LogitsNotFinite.
        """
        scheduler = OfflineScheduler(self, max_batch_size)
        index = {
            scheduler.add_request(prompt, params=params): i for i, prompt in enumerate(prompts)
        }
        try:
            while scheduler.has_unfinished():
                for output in scheduler.advance():
                    if output.error is not None:
                        raise output.error
                    if output.text:
                        yield index[output.request_id], output.text
        finally:
            for request_id in index:
                scheduler.abort(request_id)
