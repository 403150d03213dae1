"""Options that the commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection


def some_of(known: Collection[str], *, or_none: bool = False) -> Callable[[str], list[str]]:
    """Reads names with commas between; with `or_none`, an empty text is no names."""

    def names(text: str) -> list[str]:
        found = text.split(",") if text or not or_none else []
        if unknown := set(found) - set(known):
            raise argparse.ArgumentTypeError(
                f"unknown {', '.join(sorted(unknown))}: choose from {', '.join(known)}"
            )
        return found

    return names
