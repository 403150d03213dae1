"""The load probe: does the engine compute for this model what the model itself would?

The engine replaces a model's attention, or with the compiled decoder all of it. Two short
sequences, packed and cut into chunks, must give the logits that the model's own attention gives for
each sequence alone. A wrong answer is worse than a refusal: what fails this is not used.

Both take the same experts of a mixture, on a CPU: see routes.py.
"""

import math
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rose.sampling import SamplingParams
from roseinfer.kv_cache.cache import KVCache
from roseinfer.model.attention import IMPLEMENTATION
from roseinfer.model.attention_layers import AttentionLayers, probe_ids, refuse, refuse_failure
from roseinfer.model.limits import position_limits
from roseinfer.model.routes import Routes
from roseinfer.model.runner import Runner
from roseinfer.sessions.session import Chunk, InferenceSession
from roseinfer.text.detokenizer import TextStream

# Two sequences, and the chunk of each that every step computes. Between them: packing, a chunk
# that continues another, a decode batch of two, contexts longer than a block. A model with fewer
# positions computes what fits.
_CHUNKS = ((4, 1), (2, 17), (1, 1))
_LENGTHS = tuple(sum(lengths) for lengths in zip(*_CHUNKS, strict=True))
_BLOCK_SIZE = 8

# The mean over all tokens of the relative error of their logits. Rounding stays below; attending
# to one wrong key does not.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6, torch.float16: 3e-2}
_DEFAULT_TOLERANCE = 0.1
# With weights of few bits activations are rounded to 8 bits before each product: over 32 layers of
# random weights that adds up to 0.13.
_QUANTIZED_TOLERANCE = 0.25

# Of the experts that the model took, the share that the engine would have taken too. With rounded
# activations it is above; with scores that are compared without their bias it is not.
_LEAST_AGREEMENT = 0.8


def probe_tokens(model: Any) -> int:
    """Those of the longest sequence."""
    return min([max(_LENGTHS), *position_limits(model)])


class Reference:
    """Logits as the model's own code and attention give them, before anything is replaced."""

    def __init__(self, model: Any, *, quantized: bool = False) -> None:
        """Raises UnsupportedModel if the model cannot be run at all. `quantized`: what is compared
        with it has weights of few bits."""
        self._model = model
        self._chunks = _chunks_within(probe_tokens(model))
        lengths = [sum(counts) for counts in zip(*self._chunks, strict=True)]
        self._sequences = [probe_ids(model, length, salt=i) for i, length in enumerate(lengths)]
        self.tolerance = (
            _QUANTIZED_TOLERANCE if quantized else _TOLERANCE.get(model.dtype, _DEFAULT_TOLERANCE)
        )
        routes = Routes(model)
        try:
            with routes.recording(lengths):
                self._logits = _reference_logits(model, self._sequences)
        except Exception as error:
            raise refuse_failure(model, "the probe's forward pass", error) from error
        if not bool(self._logits.isfinite().all()):
            dtype = str(model.dtype).removeprefix("torch.")
            raise refuse(
                model,
                f"its own logits in {dtype} are not finite: a weight is damaged (NaN or infinite), "
                "or its values are too large for this dtype",
            )
        known = model.device.type == "cpu" and routes.are_known(
            [len(ids) for ids in self._sequences]
        )
        self._routes = routes if known else None

    def error(self, runner: Runner, layers: AttentionLayers) -> float:
        """The mean relative error of the logits of `runner`, which is left unbound; infinite if it
        would take other experts.

        Raises UnsupportedModel if it fails altogether.
        """
        try:
            steps = _Steps(self._model, runner, layers, self._sequences, self._routes)
            ours = steps.logits(self._chunks)
        except Exception as error:
            raise refuse_failure(self._model, "the probe's forward pass", error) from error
        if steps.agreement < _LEAST_AGREEMENT:
            return math.inf
        errors = (ours - self._logits).norm(dim=-1) / self._logits.norm(dim=-1).clamp_min(1e-6)
        return float(errors.mean())


def _chunks_within(limit: int) -> list[tuple[int, ...]]:
    """_CHUNKS, without the tokens from `limit` on of each sequence."""
    ends = [tuple(min(end, limit) for end in step) for step in accumulate(_CHUNKS, _sums)]
    starts = [(0,) * len(ends[0]), *ends]
    return [tuple(b - a for a, b in zip(*pair, strict=True)) for pair in pairwise(starts)]


def _sums(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(first, second, strict=True))


class _Steps:
    """The sequences as the engine computes them."""

    def __init__(
        self,
        model: Any,
        runner: Runner,
        layers: AttentionLayers,
        sequences: list[Tensor],
        routes: Routes | None,
    ) -> None:
        layers = layers.compacted() if runner.compacts else layers
        num_blocks = 1 + sum(-(-length // _BLOCK_SIZE) for length in _LENGTHS)
        cache = KVCache(
            layers.shapes,
            num_blocks,
            _BLOCK_SIZE,
            device=model.device,
            dtype=model.dtype,
            padding=runner.cache_padding,
            states=layers.states,
        )
        runner.bind(cache)
        self._runner = runner
        self._sessions = [_session(ids, cache) for ids in sequences]
        self._routes = None if routes is None else routes.followed_by(self._sessions)

    @property
    def agreement(self) -> float:
        return 1.0 if self._routes is None else self._routes.agreement

    def logits(self, steps: list[tuple[int, ...]]) -> Tensor:
        """[sum of lengths, V], sequence after sequence."""
        parts: list[list[Tensor]] = [[] for _ in self._sessions]
        for counts in steps:
            pairs = zip(self._sessions, counts, strict=True)
            chunks = [Chunk(session, count) for session, count in pairs if count]
            if not chunks:
                continue
            order, logits = self._runner.run(chunks, every_row=True, routes=self._routes)
            start = 0
            for chunk in order:
                rows = logits[start : start + chunk.count].float()
                parts[self._sessions.index(chunk.session)].append(rows)
                chunk.session.computed += chunk.count
                start += chunk.count
        return torch.cat([logits for part in parts for logits in part])


@torch.inference_mode()
def _reference_logits(model: Any, sequences: list[Tensor]) -> Tensor:
    """The logits from the model's own attention. What pads a sequence comes behind it, where its
    tokens do not look."""
    model.set_attn_implementation("eager")
    try:
        logits = model(input_ids=pad_sequence(sequences, batch_first=True)).logits
        rows = zip(logits, sequences, strict=True)
        return torch.cat([own[: len(ids)].float() for own, ids in rows])
    finally:
        model.set_attn_implementation(IMPLEMENTATION)


def _session(ids: Tensor, cache: KVCache) -> InferenceSession:
    tokens = [int(i) for i in ids.tolist()]
    session = InferenceSession(
        "probe", tokens, SamplingParams(), TextStream(None), context_length=len(tokens)
    )
    session.reuse_prefix(cache.pool)  # of nothing
    session.blocks = cache.pool.allocate(session.blocks_wanted(len(tokens), cache.block_size))
    return session
