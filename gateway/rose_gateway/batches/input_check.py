"""The check of a batch's input: how many lines it has, and whether it can be run at all."""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rose_gateway.batches.line import Line
from rose_gateway.batches.repository import Problem

#: Problems that are told of one batch.
_MAX_PROBLEMS = 100
_YIELD_BYTES = 64 * 1024


CustomIdOf = Callable[[Line], Awaitable[str | None]]


@dataclass(frozen=True, slots=True)
class InputCheck:
    total: int
    """lines that are to be answered"""
    problems: Sequence[Problem]
    """why the batch cannot be run; a line that is only wrong in itself is none"""


async def check_input(
    lines: AsyncIterator[Line], *, max_lines: int, custom_id_of: CustomIdOf
) -> InputCheck:
    """Memory: 12 bytes a line. Raises: what `lines` and `custom_id_of` raise."""
    total = unyielded = 0
    hashes, numbers = array("Q"), array("L")
    async for line in lines:
        if line.number > max_lines:
            message = f"the file has more than {max_lines} lines: make several batches of it"
            return InputCheck(total, [Problem("too_many_lines", message, line.number)])
        total += 1
        unyielded += len(line.raw)
        if unyielded > _YIELD_BYTES:  # others have to be served meanwhile
            unyielded = 0
            await asyncio.sleep(0)
        if (custom_id := await custom_id_of(line)) is not None:
            digest = hashlib.blake2b(custom_id.encode(errors="surrogatepass"), digest_size=8)
            hashes.append(int.from_bytes(digest.digest()))
            numbers.append(line.number)
    if total == 0:
        return InputCheck(0, [Problem("empty_file", "the file has no lines")])
    problems = [
        Problem(
            "duplicate_custom_id",
            "an earlier line has the same custom_id: nobody could tell their answers apart",
            number,
            "custom_id",
        )
        for number in _repeats(hashes, numbers)
    ]
    return InputCheck(total, problems)


def _repeats(hashes: array[int], numbers: array[int]) -> Iterator[int]:
    """Numbers of the first lines whose hash an earlier line has."""
    ordered = sorted(hashes)
    repeated = {one for one, other in pairwise(ordered) if one == other}
    seen: set[int] = set()
    count = 0
    for hash_, number in zip(hashes, numbers, strict=True) if repeated else ():
        if hash_ in seen:
            yield number
            count += 1
            if count == _MAX_PROBLEMS:
                return
        elif hash_ in repeated:
            seen.add(hash_)
