"""Which experts a model's routers choose: recorded in forward passes, to be followed in others.

A near tie between experts is decided by rounding, and another expert makes quite another hidden
state. So where two computations are compared, one follows the other's choices, and how often it
would have chosen otherwise is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from roseinfer.model.experts import router_of
from roseinfer.sessions.session import Chunk, InferenceSession

_Answer = tuple[Tensor, ...]


class Routes:
    """What a model's routers answer to sequences."""

    def __init__(self, model: nn.Module) -> None:
        found = [router_of(module) for module in model.modules() if hasattr(module, "experts")]
        self.routers: list[nn.Module] = [router for router in found if router is not None]
        self._answers: list[list[_Answer]] = [[] for _ in self.routers]

    @contextmanager
    def recording(self, lengths: list[int]) -> Iterator[None]:
        """Of a forward pass inside, of sequences of these lengths, padded to the longest."""
        tokens = len(lengths) * max(lengths)

        def record(index: int, answer: Any) -> None:
            understood = _is_understood(answer) and len(answer[-1]) == tokens
            for number, length in enumerate(lengths):
                own = slice(number * max(lengths), number * max(lengths) + length)
                self._answers[index].append(
                    tuple(part[own].detach().clone() for part in answer) if understood else ()
                )

        with self.hooked(record):
            yield

    @contextmanager
    def hooked(self, hook: Callable[[int, Any], Any]) -> Iterator[None]:
        """`hook` gets a router's number and its answer; the router answers what it returns, unless
        that is None."""
        with ExitStack() as stack:
            for index, router in enumerate(self.routers):
                handle = router.register_forward_hook(
                    lambda _module, _inputs, answer, index=index: hook(index, answer)
                )
                stack.callback(handle.remove)
            yield

    def are_known(self, lengths: list[int]) -> bool:
        """Whether there are any, and all answered once to each sequence, as is understood."""
        answered = [[len(answer[-1]) if answer else 0 for answer in own] for own in self._answers]
        return bool(answered) and all(own == lengths for own in answered)

    def followed_by(self, sessions: list[InferenceSession]) -> FollowedRoutes:
        """By a computation whose `sessions` are the sequences."""
        return FollowedRoutes(self, sessions)

    def answer(self, router: int, sequence: int, tokens: slice) -> _Answer:
        return tuple(part[tokens] for part in self._answers[router][sequence])


class FollowedRoutes:
    """Routes for the steps of another computation."""

    def __init__(self, routes: Routes, sessions: list[InferenceSession]) -> None:
        self._routes, self._sessions = routes, sessions
        self._followed = self._agreed = 0

    def choices(self, chunks: Sequence[Chunk]) -> Tensor:
        """Int32 [routers, T, experts of a token], for the T tokens of `chunks`."""
        routers = range(len(self._routes.routers))
        return torch.stack([self._answer(i, chunks)[-1] for i in routers]).to(torch.int32)

    def count(self, followed: int, agreed: int) -> None:
        """Of experts followed so many would have been chosen anyway."""
        self._followed += followed
        self._agreed += agreed

    @property
    def agreement(self) -> float:
        return self._agreed / self._followed if self._followed else 1.0

    @contextmanager
    def replayed(self, chunks: Sequence[Chunk]) -> Iterator[None]:
        """The model's own routers answer so in a forward pass inside, whose first rows are
        `chunks`."""

        def replay(router: int, answer: Any) -> _Answer:
            recorded = self._answer(router, chunks)
            rest = [part[len(own) :] for part, own in zip(answer, recorded, strict=True)]
            return tuple(map(torch.cat, zip(recorded, rest, strict=True)))

        with self._routes.hooked(replay):
            yield

    def _answer(self, router: int, chunks: Sequence[Chunk]) -> _Answer:
        parts = [
            self._routes.answer(
                router,
                self._sessions.index(chunk.session),
                slice(chunk.session.computed, chunk.end),
            )
            for chunk in chunks
        ]
        return tuple(map(torch.cat, zip(*parts, strict=True)))


def _is_understood(answer: Any) -> bool:
    """Tensors [tokens, ...], the last one with the numbers of experts."""
    if not (isinstance(answer, tuple) and all(isinstance(part, Tensor) for part in answer)):
        return False
    last = answer[-1]
    return last.dtype in (torch.int32, torch.int64) and all(
        part.dim() == 2 and len(part) == len(last) for part in answer
    )
