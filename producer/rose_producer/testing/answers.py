"""What a played model says."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rose.errors import RoseError

_WORD = re.compile(r"\s*\S+|\s+$")


@dataclass(frozen=True, slots=True)
class Answer:
    """The text of a job, token by token, and how it ends."""

    text: str | Sequence[str]
    """a text, of which each word is a token, or its tokens"""
    reason: Literal["eos", "stop", "length"] = "eos"
    error: RoseError | None = None
    """It fails with this one after its text: `InvalidParameter("...")`, `JobFailed("...")`."""
    pause_s: float = 0.0
    """before each token"""
    killed_after: Sequence[int] = ()
    """After so many tokens its worker is killed, and another one goes on."""

    @property
    def tokens(self) -> list[str]:
        return _WORD.findall(self.text) if isinstance(self.text, str) else list(self.text)
