"""Layers with a state, plugged into transformers' models.

A mixer is the module of such a layer. It projects its input, convolves it over the last few tokens,
in most kinds runs a recurrence over all of them, and projects back. It calls convolution and
recurrence by the names of functions beside it. Here it gets its own forward with other functions
under these names, which know the packed batch and find the states in the cache.

Two kinds of recurrence are one: sums S, a matrix for each head, become decay * S + key (x) value.
The gated delta rule adds less the nearer key's value in S is: beta * (value - key * decay * S).
Each token is computed by itself, in the same order in any chunk.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import FunctionType, MethodType
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor, nn
from transformers.activations import ACT2FN

from roseinfer.kv_cache.cache import KVCache, StateShape
from roseinfer.sessions.session import Chunk

_CONVOLUTION = "causal_conv1d_fn"
_DELTA_RULE = "torch_chunk_gated_delta_rule"
_STATE_SPACE = "mamba2_chunk_scan"
#: What a mixer calls that has sums, whatever computes them.
_KEEPS_SUMS = "update_recurrent_state"


class Mixing(Protocol):
    """What a mixer calls in a forward pass without a cache of transformers'."""

    def convolve(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
    ) -> Tensor:
        """`x` is [1, C, T], `weight` [C, K]."""

    def recur(
        self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor | None
    ) -> Tensor:
        """All in float32: query and key [T, H, K], value [T, H, V], decay and beta [T, H]. The sums
        after each token, times its query: [T, H, V]."""


def find_mixers(model: nn.Module) -> list[nn.Module]:
    """The modules with a state, in their order."""
    return [module for module in model.modules() if _CONVOLUTION in _names_of(module)]


def keeps_sums(mixer: nn.Module) -> bool:
    """Whether it has a recurrence, of any kind."""
    return _KEEPS_SUMS in _names_of(mixer)


def plug_in(mixer: nn.Module, mixing: Mixing) -> None:
    """From now on `mixer` calls `mixing`."""
    forward = _forward(mixer)

    def convolve(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **_: Any,
    ) -> Tensor:
        return mixing.convolve(x, weight, bias, activation)

    def delta_rule(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        return _delta_rule(mixing, *args, **kwargs), None

    def state_space(*args: Any, **kwargs: Any) -> Tensor:
        return _state_space(mixing, *args, **kwargs)

    names = {_CONVOLUTION: convolve, _DELTA_RULE: delta_rule, _STATE_SPACE: state_space}
    own = FunctionType(
        forward.__code__,
        {**forward.__globals__, **names},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    own.__kwdefaults__ = forward.__kwdefaults__
    mixer.forward = MethodType(own, mixer)


def unplug(mixer: nn.Module) -> None:
    mixer.__dict__.pop("forward", None)


def _names_of(module: nn.Module) -> frozenset[str]:
    return frozenset(_forward(module).__code__.co_names)


def _forward(module: nn.Module) -> Any:
    """Its class's, without what decorators put around it."""
    return inspect.unwrap(type(module).forward)


def _delta_rule(
    mixing: Mixing,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    **kwargs: Any,
) -> Tensor:
    """query and key [1, T, G, K], value [1, T, H, V], log decay g and beta [1, T, H]."""
    heads = value.shape[2]
    query, key = (_per_head(x[0].float(), heads) for x in (query, key))
    if kwargs["use_qk_l2norm_in_kernel"]:
        query, key = _normalized(query), _normalized(key)
    query = query * query.shape[-1] ** -0.5
    out = mixing.recur(query, key, value[0].float(), g[0].float().exp(), beta[0].float())
    return out.to(value.dtype).unsqueeze(0)


def _normalized(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)


def _state_space(
    mixing: Mixing,
    x: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803 - their names everywhere
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    D: Tensor,  # noqa: N803
    dt_bias: Tensor,
    dt_limit: tuple[float, float],
    **_: Any,
) -> Tensor:
    """Mamba 2's: x [1, T, H, P], dt [1, T, H], A, D and dt_bias [H], B and C [1, T, G, N]."""
    heads = x.shape[2]
    dt = F.softplus(dt + dt_bias.to(dt.dtype)).clamp(*dt_limit)[0].float()
    x = x[0].float()
    key, query = (_per_head(y[0].float(), heads) for y in (B, C))
    out = mixing.recur(query, key, x * dt.unsqueeze(-1), (A.float() * dt).exp(), None)
    return (out + D.unsqueeze(-1) * x).unsqueeze(0)


def _per_head(x: Tensor, heads: int) -> Tensor:
    """[T, groups, D] as [T, heads, D]."""
    return x.repeat_interleave(heads // x.shape[1], dim=1)


class MixingRecorder:
    """Answers a mixer with zeros and remembers the shape of its state, once for each call."""

    def __init__(self) -> None:
        self.shapes: list[StateShape] = []

    def convolve(self, x: Tensor, weight: Tensor, *_: Any) -> Tensor:
        self.shapes.append(StateShape((weight.shape[1] - 1, weight.shape[0]), None))
        return torch.zeros_like(x)

    def recur(self, _: Tensor, key: Tensor, value: Tensor, *__: Any) -> Tensor:
        inputs = self.shapes.pop().inputs
        self.shapes.append(StateShape(inputs, (value.shape[1], key.shape[2], value.shape[2])))
        return torch.zeros_like(value)


@dataclass(frozen=True, slots=True)
class StateBatch:
    """A step's sequences as layers with a state read them.

    Row `starts[i] + t` is the token t of sequence i. The state behind it is written where a line of
    `writes` says so.
    """

    starts: Tensor  # [B]
    lengths: Tensor  # [B], the longest first
    slots: Tensor  # [B], where each sequence's state is
    writes: Tensor  # [W, 3]: sequences in their order, tokens in theirs, and slots
    sequence_of: Tensor  # [R], of each row, sequence by sequence
    token_of: Tensor  # [R]
    rows: Tensor  # [R]
    _inputs: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, order: Sequence[Chunk], cache: KVCache) -> "StateBatch":
        ends = accumulate(chunk.count for chunk in order)
        sequences = [(end - chunk.count, chunk) for end, chunk in zip(ends, order, strict=True)]
        sequences.sort(key=lambda pair: -pair[1].count)
        writes = list[tuple[int, int, int]]()
        for number, (_, chunk) in enumerate(sequences):
            session, before = chunk.session, chunk.session.computed
            written = session.state.writes(cache.pool, before, chunk.end - len(chunk.drafts))
            writes += [(number, tokens - before - 1, slot) for tokens, slot in sorted(written)]
        starts = torch.tensor([start for start, _ in sequences])
        lengths = torch.tensor([chunk.count for _, chunk in sequences])
        sequence_of = torch.arange(len(sequences)).repeat_interleave(lengths)
        token_of = torch.cat([torch.arange(chunk.count) for _, chunk in sequences])
        return cls(
            starts,
            lengths,
            torch.tensor([chunk.session.state.slot for _, chunk in sequences]),
            torch.tensor(writes, dtype=torch.int64).view(-1, 3),
            sequence_of,
            token_of,
            starts[sequence_of] + token_of,
        )

    def inputs(self, before: int) -> tuple[Tensor, Tensor]:
        """For convolutions over a token and `before` others: the places of each row's inputs [R,
        before + 1], and of the inputs that each write keeps [W, before]. The inputs before each
        sequence come first, then the rows. Made once a step."""
        if before not in self._inputs:
            sequences, tokens = self.writes[:, :1], self.writes[:, 1:2]
            self._inputs[before] = (
                self._places(self.sequence_of[:, None], self.token_of[:, None], before + 1, before),
                self._places(sequences, tokens, before, before),
            )
        return self._inputs[before]

    def _places(self, sequences: Tensor, last: Tensor, count: int, before: int) -> Tensor:
        """Of the `count` inputs up to a token of a sequence."""
        tokens = last + torch.arange(1 - count, 1)
        rows = before * len(self.starts) + self.starts[sequences] + tokens
        return torch.where(tokens < 0, (sequences + 1) * before + tokens, rows)


def recur_in_torch(
    sums: Tensor,
    batch: StateBatch,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor | None,
) -> Tensor:
    """See `Mixing.recur`; `sums` [slots, H, K, V] are those of all sequences."""
    out, own = torch.zeros_like(value), sums[batch.slots]
    for token in range(int(batch.lengths[0])):
        count = int((batch.lengths > token).sum())
        rows, now = batch.starts[:count] + token, own[:count]
        now *= decay[rows, :, None, None]
        added, own_key = value[rows], key[rows].unsqueeze(-1)
        if beta is not None:
            added = (added - (now * own_key).sum(dim=-2)) * beta[rows].unsqueeze(-1)
        now += own_key * added.unsqueeze(-2)
        out[rows] = (now * query[rows].unsqueeze(-1)).sum(dim=-2)
        written = batch.writes[batch.writes[:, 1] == token]
        sums[written[:, 2]] = own[written[:, 0]]
    return out


#: The function above, or a faster one.
Recur = Callable[[Tensor, StateBatch, Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor]


class StateLayers:
    """The layers with a state over one cache. `batch` is the step's, and None between steps."""

    def __init__(self, cache: KVCache, recur: Recur) -> None:
        self.batch: StateBatch | None = None
        self.recur = recur
        self._cache = cache
        self.layers: list[Mixing] = [
            _StateLayer(self, inputs, sums)
            for inputs, sums in zip(cache.inputs, cache.sums, strict=True)
        ]

    def begin(self, order: Sequence[Chunk]) -> None:
        """A step that computes these chunks, in the order of their rows."""
        self._cache.copy_states()
        self.batch = StateBatch.of(order, self._cache)

    def current(self) -> StateBatch:
        if self.batch is None:
            raise RuntimeError("a layer with a state was called outside of an engine step")
        return self.batch


class _StateLayer:
    """One layer's states: `inputs` [slots, K - 1, C], `sums` [slots, H, K, V]."""

    def __init__(self, owner: StateLayers, inputs: Tensor, sums: Tensor | None) -> None:
        self._owner, self._inputs, self._sums = owner, inputs, sums

    def convolve(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
    ) -> Tensor:
        batch, before = self._owner.current(), self._inputs.shape[1]
        places, kept = batch.inputs(before)
        known = torch.cat([self._inputs[batch.slots].flatten(0, 1), x[0].T.to(weight.dtype)])
        total = torch.zeros_like(weight[:, 0]) if bias is None else bias
        for tap in range(before + 1):
            total = total + known[places[:, tap]] * weight[:, tap]
        self._inputs[batch.writes[:, 2]] = known[kept]
        out = known.new_zeros(x.shape[2], x.shape[1])
        out[batch.rows] = total
        if activation is not None:
            out = ACT2FN[activation](out)
        return out.to(x.dtype).T.unsqueeze(0)

    def recur(
        self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor | None
    ) -> Tensor:
        if self._sums is None:
            raise RuntimeError("a layer without sums calls a recurrence")
        batch = self._owner.current()
        return self._owner.recur(self._sums, batch, query, key, value, decay, beta)
