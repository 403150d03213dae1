"""The compiled decoder: common families on CPU, a whole step in one call.

Compiled when it is first needed, if there is a C++ compiler. Without one, and for every other
family, transformers' own code runs the model (see roseinfer/model/transformers_model.py): the same
tokens, more slowly.
"""

from roseinfer.native.decoder import NativeDecoder, build_decoder
from roseinfer.native.library import (
    available,
    build_name,
    can_sample,
    library_digest,
    missing_reason,
    sample_rows,
)
from roseinfer.native.recurrence import recur

__all__ = [
    "NativeDecoder",
    "available",
    "build_decoder",
    "build_name",
    "can_sample",
    "library_digest",
    "missing_reason",
    "recur",
    "sample_rows",
]
