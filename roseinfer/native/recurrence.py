"""The recurrence of layers with a state, compiled: see recurrence.h."""

from ctypes import byref

import torch
from torch import Tensor

from roseinfer.model.state_layers import StateBatch
from roseinfer.native.library import MAX_SUM_COLUMNS, Recurrence, library


def recur(
    sums: Tensor,
    batch: StateBatch,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor | None,
) -> Tensor:
    """As `model.state_layers.recur_in_torch`, which says what it computes."""
    heads, keys, values = sums.shape[1:]
    rows, threads = len(value), torch.get_num_threads()
    inputs = [x.contiguous() for x in (query, key, value, decay)]
    wanted = [(rows, heads, keys), (rows, heads, keys), (rows, heads, values), (rows, heads)]
    if beta is not None:
        inputs.append(beta.contiguous())
        wanted.append((rows, heads))
    fits = [tuple(x.shape) for x in inputs] == wanted and len(batch.rows) <= rows
    if not fits or {x.dtype for x in (*inputs, sums)} != {torch.float32}:
        raise ValueError(f"these do not fit sums of {tuple(sums.shape)}: {wanted}")
    out, scratch = torch.zeros_like(inputs[2]), torch.empty(threads * keys * MAX_SUM_COLUMNS)
    numbers = (batch.starts, batch.starts + batch.lengths, batch.slots, batch.writes)
    library().rose_recur(
        byref(
            Recurrence(
                *(x.data_ptr() for x in inputs[:4]),
                inputs[4].data_ptr() if beta is not None else None,
                *(x.data_ptr() for x in (out, sums, scratch, *numbers)),
                *(heads * keys, heads * values, heads, heads * values),
                *(len(batch.starts), heads, heads, keys, values, len(batch.writes), threads),
                beta is not None,
            )
        )
    )
    return out
