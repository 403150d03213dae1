"""Texts side by side in one row, without padding: each attends to itself alone.

All else that layers compute is of a token by itself. Whether that is so of a model is tried at load
(`Packing.of`); one that differs is computed in padded batches.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from roseinfer.checkpoints.transformers_messages import first_line, unsupported
from roseinfer.encoders.compiled_layers import CompiledLayers, compile_layers
from roseinfer.encoders.linears import PackedLinears
from roseinfer.model.attention import IMPLEMENTATION, AttentionCall, bind_everywhere, unbind

log = logging.getLogger(__name__)

#: Tokens of the texts that are tried: longer than the windows of most models.
_TRIED = (3, 300, 19)
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}


class Packing:
    """Computes the hidden states of several texts at once. Not thread-safe."""

    def __init__(self, model: Any, mixing: "_Attention | CompiledLayers", first: int) -> None:
        """`mixing`: what in `model` takes the texts apart. `first`: the number of a text's first
        position."""
        self._model, self._mixing, self._first_position = model, mixing, first

    @property
    def is_compiled(self) -> bool:
        """Whether a text's hidden states are the same bits whatever is beside it."""
        return isinstance(self._mixing, CompiledLayers)

    @classmethod
    @torch.inference_mode()
    def of(cls, model: Any, longest: int, weights: str | None = None) -> "Packing | str":
        """For `model`, whose texts have at most `longest` tokens; or why it cannot be packed, with
        these `weights`.

        Raises: UnsupportedModel: they cannot hold this model.
        """
        texts = tried_texts(model, longest)
        usual = model.config._attn_implementation
        expected = [_alone(model, ids) for ids in texts]
        reason: Packing | str = ""
        layers: CompiledLayers | str
        try:
            model.set_attn_implementation(IMPLEMENTATION)
            layers = compile_layers(model, longest)
        except Exception as error:  # noqa: BLE001 - whatever the model's own code raises
            layers = first_line(error)
        if isinstance(layers, CompiledLayers):
            reason = cls._tried(model, layers, texts, expected)
            if isinstance(reason, Packing):
                if weights is not None:
                    layers.quantize(weights)
                return reason
            layers.restore()
        reason = reason or str(layers)
        if weights is not None:  # nothing else reads them
            return reason
        log.info("its layers are transformers' own code: %s", reason)
        linears, attention = PackedLinears(model), _Attention()
        bind_everywhere(model, attention)
        reason = cls._tried(model, attention, texts, expected)
        if isinstance(reason, str):
            linears.restore()
            unbind(model)
            model.set_attn_implementation(usual)
        return reason

    @classmethod
    def _tried(
        cls,
        model: Any,
        mixing: "_Attention | CompiledLayers",
        texts: Sequence[Sequence[int]],
        expected: Sequence[Tensor],
    ) -> "Packing | str":
        reason = ""
        # RoBERTa's positions begin behind the padding's.
        for first in (0, (model.config.pad_token_id or 0) + 1):
            packing = cls(model, mixing, first)
            try:
                hidden = packing.hidden_states(texts)
            except Exception as error:  # noqa: BLE001 - whatever the model's own code raises
                reason = first_line(error)
                continue
            if are_close(hidden, expected):
                return packing
            reason = reason or "its layers mix the texts of a row"
        return reason

    def hidden_states(
        self, texts: Sequence[Sequence[int]], types: Sequence[Sequence[int] | None] | None = None
    ) -> list[Tensor]:
        """Of each text [tokens, width]. `types`: of their tokens, for a model that has types."""
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        lengths = [len(texts[number]) for number in order]
        device, first = self._model.device, self._first_position
        arguments = {
            "input_ids": torch.cat([torch.tensor(texts[number]) for number in order]),
            "position_ids": torch.cat([torch.arange(first, first + one) for one in lengths]),
        }
        if types is not None:
            arguments["token_type_ids"] = torch.cat(
                [
                    torch.zeros(length, dtype=torch.long)
                    if (own := types[number]) is None
                    else torch.tensor(own)
                    for number, length in zip(order, lengths, strict=True)
                ]
            )
        self._mixing.begin(lengths)
        rows = self._model(
            **{name: value[None].to(device) for name, value in arguments.items()}
        ).last_hidden_state[0]
        parts: Sequence[Tensor] = torch.split(rows, lengths)
        by_number = dict(zip(order, parts, strict=True))
        return [by_number[number] for number in range(len(texts))]


class _Attention:
    """Bound on the modules of a model: see LayerState."""

    def __init__(self) -> None:
        self._groups: list[tuple[int, int]] = []
        self._masks: dict[tuple[int, int, bool], Tensor] = {}

    def begin(self, lengths: Sequence[int]) -> None:
        """Texts of these lengths, shorter ones first, are next."""
        self._groups = [(length, len(list(group))) for length, group in groupby(lengths)]
        self._masks.clear()

    def attend(self, call: AttentionCall) -> Tensor:
        if call.softcap is not None or call.sinks is not None:
            raise unsupported(call.module.config, "its attention has caps or sinks")
        query = call.query[0].transpose(0, 1)
        out = torch.empty(
            *query.shape[:2], call.value.shape[-1], dtype=query.dtype, device=query.device
        )
        for rows, length in self._rows():
            out[rows] = self._attend(call, rows, length)
        return out[None]

    def _rows(self) -> Iterator[tuple[slice, int]]:
        start = 0
        for length, count in self._groups:
            yield slice(start, start + count * length), length
            start += count * length

    def _attend(self, call: AttentionCall, rows: slice, length: int) -> Tensor:
        """Of texts that have the same length; [rows, Hq, Dv]."""

        def of_texts(states: Tensor) -> Tensor:
            _, heads, _, width = states.shape
            return states[0, :, rows].reshape(heads, -1, length, width).transpose(0, 1)

        causal = bool(getattr(call.module, "is_causal", False))
        windowed = call.window is not None and call.window < length
        out = F.scaled_dot_product_attention(
            of_texts(call.query),
            of_texts(call.key),
            of_texts(call.value),
            attn_mask=self._mask(call, length, causal=causal) if windowed else None,
            is_causal=causal and not windowed,
            scale=call.scaling,
            enable_gqa=call.key.shape[1] != call.query.shape[1],
        )
        return out.permute(0, 2, 1, 3).flatten(0, 1)

    def _mask(self, call: AttentionCall, length: int, *, causal: bool) -> Tensor:
        window = call.window
        assert window is not None  # noqa: S101 - the caller has looked
        key = length, window, causal
        if key not in self._masks:
            places = torch.arange(length, device=call.query.device)
            distance = places[:, None] - places
            near = distance < window
            self._masks[key] = near & (distance >= 0 if causal else distance > -window)
        return self._masks[key]


def tried_texts(model: Any, longest: int) -> list[list[int]]:
    """Token ids of a model's vocabulary, without padding."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = int(model.config.get_text_config().vocab_size)
    padding = model.config.pad_token_id
    texts = [
        torch.randint(vocabulary, (min(length, longest),), generator=generator).tolist()
        for length in _TRIED
    ]
    return [[(i + 1) % vocabulary if i == padding else i for i in ids] for ids in texts]


def _alone(model: Any, ids: Sequence[int]) -> Tensor:
    hidden: Tensor = model(input_ids=torch.tensor([ids], device=model.device)).last_hidden_state[0]
    return hidden


def are_close(numbers: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether rows are equal but for rounding, on average. Rows that are no numbers, of a damaged
    model, say nothing."""
    ours, theirs = torch.cat(list(numbers)).double(), torch.cat(list(expected)).double()
    errors = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp_min(1e-6)
    tolerance = _TOLERANCE.get(expected[0].dtype, 0.1)
    return bool(errors[theirs.isfinite().all(dim=-1)].mean() <= tolerance)
