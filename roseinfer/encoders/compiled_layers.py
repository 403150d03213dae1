"""The layers of an encoder in the compiled library, in the place of the model's own."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from rose.errors import UnsupportedModel
from roseinfer.model.attention import unbind
from roseinfer.model.attention_layers import AttentionLayers, record_calls
from roseinfer.model.encoder_families import encoder_stack, find_layers_of
from roseinfer.model.limits import length_limits, model_type, text_config
from roseinfer.model.quantization import FORMATS, quantize_linear
from roseinfer.model.quantized_linears import QuantizedLinears
from roseinfer.native import library as c
from roseinfer.native.encoder import NativeEncoder
from roseinfer.native.shapes import find_misfit_of_stack

#: Takes the weights of a model's layers over, or those that are quantized.
MakeEncoder = Callable[[QuantizedLinears | None], NativeEncoder]


class CompiledLayers(nn.Module):
    """All layers of a model, one behind the other, as if they were one. What is before and behind
    them stays the model's own code.

    Each text of a row attends to itself alone. Its hidden states are the same bits whatever is
    beside it.
    """

    def __init__(
        self, parent: nn.Module, name: str, make: MakeEncoder, linears: Sequence[Any]
    ) -> None:
        """In the place of the layers that `parent` has by this name, whose linear layers are
        `linears`."""
        super().__init__()
        self._make, self._linears = make, linears
        self._encoder = make(None)
        self._lengths: Sequence[int] = ()
        # Not as modules of this one.
        own = getattr(parent, name)
        self._place = parent, name, own
        self.attention_type = getattr(own[0], "attention_type", None)
        setattr(parent, name, nn.ModuleList([self]))

    def quantize(self, weights: str) -> None:
        """Go on with weights of few bits. Raises: UnsupportedModel"""
        self._encoder.restore()
        quantized, (bits, _) = QuantizedLinears(), FORMATS[weights]
        for linear in self._linears:
            quantized[linear] = quantize_linear(linear, weights, bits)
            quantized.drop([linear])
        self._encoder = self._make(quantized)

    def begin(self, lengths: Sequence[int]) -> None:
        """Texts of these lengths are next."""
        self._lengths = lengths

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        states = self._encoder.run(hidden_states[0].float(), self._lengths)
        return states[None].to(hidden_states.dtype)

    def restore(self) -> None:
        """Give the model its layers back; this object cannot be used any more."""
        setattr(*self._place)
        self._encoder.restore()


def compile_layers(model: Any, longest: int) -> CompiledLayers | str:
    """For `model`, whose attention is set to IMPLEMENTATION and whose texts have at most `longest`
    tokens; or why they cannot be compiled."""
    if model.device.type != "cpu":
        return f"the library computes on a CPU, not on {model.device}"
    if fault := c.fault_of(model):
        return fault
    config = text_config(model)
    if any(limit < longest for limit in length_limits(config)):
        return "the rotation of its longer texts depends on their length"
    try:
        calls = record_calls(model).calls
    except UnsupportedModel as error:
        return str(error)
    finally:
        unbind(model)
    found = find_layers_of(model, [call.module for call in calls]) if calls else None
    stack = None if found is None else encoder_stack(model, getattr(*found))
    if found is None or stack is None:
        return f"it does not know this kind of {model_type(model)} model"
    seen = [
        replace(call, is_causal=bool(getattr(call.module, "is_causal", False))) for call in calls
    ]
    layers, width = AttentionLayers(seen), int(config.hidden_size)
    misfit = find_misfit_of_stack(stack, layers, width)
    if misfit is not None:
        return f"it does not hold this model: {misfit}"
    if (name := _linear_beside(model, stack.linears)) is not None:
        return f"the bits of what {name} makes may depend on the batch"
    make = partial(NativeEncoder, stack, layers, width, longest, model.dtype)
    return CompiledLayers(*found, make, stack.linears)


def _linear_beside(model: Any, linears: Sequence[Any]) -> str | None:
    """The name of a linear layer that hidden states pass and that is none of these."""
    known = {id(linear) for linear in linears}
    modules: dict[str, nn.Module] = dict(model.named_modules())
    for name, module in modules.items():
        is_pooler = "pooler" in name.split(".")  # it reads what the last layer has made
        if isinstance(module, nn.Linear) and id(module) not in known and not is_pooler:
            return name
    return None
