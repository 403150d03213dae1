"""The output items of a response, as they grow from a job's tokens."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from rose.formats.parts import Arguments, CallBegun, CallCut, CallEnded, Parser, Text

ItemStatus = Literal["in_progress", "completed", "incomplete"]


#: What shows the log-probabilities of a token that were packed.
LogprobEntry = Callable[[bytes], dict[str, Any]]


class MessageItem:
    """Text, and the log-probabilities of its tokens, if they were asked for.

    They stay packed until the item closes, in 0.3 kB a token: entries take 4 kB and fifty objects,
    and thousands of readers may be in the middle of an answer.
    """

    def __init__(self, item_id: str, entry: LogprobEntry | None = None) -> None:
        self.id = item_id
        self._packed: list[bytes] = []
        self._entry = entry
        self._entries: list[dict[str, Any]] | None = None
        self._pieces: list[str] = []

    @property
    def logprobs(self) -> list[dict[str, Any]]:
        if self._entries is not None:
            return self._entries
        return [self._entry(packed) for packed in self._packed] if self._entry else []

    def add_logprobs(self, packed: Sequence[bytes]) -> None:
        self._packed += packed

    def close(self) -> None:
        """All that comes shows the same entries several times."""
        self._entries = self.logprobs

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def grow(self, text: str) -> None:
        self._pieces.append(text)

    def part(self) -> dict[str, Any]:
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": self.logprobs,
        }

    def begun(self) -> dict[str, Any]:
        """As `output_item.added` shows it."""
        return self._shown("in_progress", [])

    def shown(self, status: ItemStatus) -> dict[str, Any]:
        return self._shown(status, [self.part()])

    def _shown(self, status: ItemStatus, content: list[Any]) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }


class CallItem:
    """A call of a function."""

    def __init__(self, item_id: str, call_id: str, name: str) -> None:
        self.id = item_id
        self.call_id = call_id
        self.name = name
        self.complete = False
        self._pieces: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    def grow(self, text: str) -> None:
        self._pieces.append(text)

    def begun(self) -> dict[str, Any]:
        """As `output_item.added` shows it."""
        return {**self.shown("in_progress"), "arguments": ""}

    def shown(self, status: ItemStatus) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.arguments,
        }


OutputItem = MessageItem | CallItem


class Opened(NamedTuple):
    position: int
    item: OutputItem


class Grown(NamedTuple):
    position: int
    item: OutputItem
    delta: str
    logprobs: Sequence[bytes] = ()


class Closed(NamedTuple):
    position: int
    item: OutputItem
    status: ItemStatus


Change = Opened | Grown | Closed


class Output:
    """One item is open at a time; the others have their final status."""

    def __init__(self, job_id: str, parser: Parser, entry: LogprobEntry | None = None) -> None:
        self._job_id = job_id
        self._entry = entry
        self._parser = parser
        self._items: list[OutputItem] = []
        self._statuses: list[ItemStatus] = []
        self._open = False
        self._calls = 0
        self._fed = False
        self.cut_call = False
        """whether the output ended within a call"""
        self._waiting: list[bytes] = []  # log-probabilities of tokens whose text has not come yet

    def add(self, text: str, logprobs: Sequence[bytes] = ()) -> list[Change]:
        """More of the model's text, and the packed log-probabilities of the tokens that brought
        it."""
        if logprobs:
            self._waiting += logprobs
        self._fed = self._fed or bool(text)
        return self._changes(self._parser.feed(text))

    def finish(self, *, complete: bool, cut: bool) -> list[Change]:
        """The output has ended. `complete`: the model has said all that it wanted to say, or all up
        to a stop. `cut`: as `Parser.finish` has it."""
        changes = self._changes(self._parser.finish(cut=cut)) if self._fed or complete else []
        complete = complete and not self.cut_call
        if not self._items and complete:
            changes.append(self._begin_message())
        if self._open:
            item = self._items[-1]
            if isinstance(item, MessageItem):
                item.add_logprobs(self._waiting)
            changes.append(self._close("completed" if complete else "incomplete"))
        return changes

    def shown(self, of_open: ItemStatus) -> list[dict[str, Any]]:
        """All items; `of_open` is the status of the one that is open."""
        statuses = [*self._statuses, of_open]
        return [item.shown(status) for item, status in zip(self._items, statuses, strict=False)]

    def _changes(self, parts: Sequence[Any]) -> list[Change]:
        changes: list[Change] = []
        for part in parts:
            match part:
                case Text(text):
                    if not self._in_message:
                        self._close_before(changes)
                        changes.append(self._begin_message())
                    changes.append(self._grow_message(text))
                case CallBegun(_, name):
                    self._close_before(changes)
                    changes.append(self._begin_call(name))
                case Arguments(_, text):
                    self._items[-1].grow(text)
                    changes.append(Grown(len(self._items) - 1, self._items[-1], text))
                case CallCut():
                    self.cut_call = True
                case CallEnded(_, complete):
                    self.cut_call = not complete
                    changes.append(self._close("completed" if complete else "incomplete"))
        return changes

    @property
    def _in_message(self) -> bool:
        return self._open and isinstance(self._items[-1], MessageItem)

    def _begin_message(self) -> Change:
        index = len(self._items)
        suffix = f"_{index}" if index else ""
        return self._begin(MessageItem(f"msg_{self._job_id}{suffix}", self._entry))

    def _begin_call(self, name: str) -> Change:
        index, call = len(self._items), self._calls
        self._calls += 1
        item_id, call_id = f"fc_{self._job_id}_{index}", f"call_{self._job_id}_{call}"
        return self._begin(CallItem(item_id, call_id, name))

    def _begin(self, item: OutputItem) -> Change:
        self._items.append(item)
        self._open = True
        return Opened(len(self._items) - 1, item)

    def _grow_message(self, text: str) -> Change:
        item = self._items[-1]
        item.grow(text)
        if not self._waiting:
            return Grown(len(self._items) - 1, item, text)
        logprobs, self._waiting = self._waiting, []
        assert isinstance(item, MessageItem)  # noqa: S101 - whoever calls this has seen to it
        item.add_logprobs(logprobs)
        return Grown(len(self._items) - 1, item, text, logprobs)

    def _close_before(self, changes: list[Change]) -> None:
        if self._open:
            changes.append(self._close("completed"))

    def _close(self, status: ItemStatus) -> Change:
        self._open = False
        self._statuses.append(status)
        item = self._items[-1]
        if isinstance(item, MessageItem):
            item.close()
        return Closed(len(self._items) - 1, item, status)
