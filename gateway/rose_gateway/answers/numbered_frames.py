"""The frames of a stream whose events are numbered, from 0 on: each number is its `id:` line."""


class NumberedFrames:
    def __init__(self, after: int | None) -> None:
        """`after`: frames of events with higher numbers are made; None for no frames at all, where
        only the whole is wanted."""
        self._after = after
        self._number = 0
        self._frames: list[str] = []

    def _wanted(self) -> bool:
        """Count the next event; whether a frame of it is wanted."""
        self._number += 1
        return self._after is not None and self._number - 1 > self._after

    def _taken(self) -> bytes:
        """What has been made since the last call."""
        if not self._frames:
            return b""
        frames = "".join(self._frames)
        self._frames.clear()
        return frames.encode("utf-8", "replace")
