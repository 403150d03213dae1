"""The compiled decoder: common families on CPU, a whole step in one call.

Built at install if there is a C++ compiler. Without one, and for every other family, transformers'
own code runs the model (see roseinfer/model.py): the same tokens, more slowly.
"""

from roseinfer.native.decoder import NativeDecoder, build_decoder
from roseinfer.native.drawing import can_draw, draw_rows
from roseinfer.native.library import available, build_name, missing_reason

__all__ = [
    "NativeDecoder",
    "available",
    "build_decoder",
    "build_name",
    "can_draw",
    "draw_rows",
    "missing_reason",
]
