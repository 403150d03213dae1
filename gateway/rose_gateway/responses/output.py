"""The output items of a response, as they grow from a job's tokens."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from rose.formats.parts import Arguments, CallBegun, CallCut, CallEnded, Text, Thought
from rose.protocol import TokenEvent
from rose_gateway.access.sealing import Seal
from rose_gateway.answers.token_parser import TokenParser
from rose_gateway.responses.client_tools import BY_NAME
from rose_gateway.responses.parameters import ResponseParameters
from rose_gateway.responses.tools import CallStyle
from rose_gateway.tools.text_input import TextInputReader

ItemStatus = Literal["in_progress", "completed", "incomplete"]


#: What shows the log-probabilities of a token that were packed.
LogprobEntry = Callable[[bytes], dict[str, Any]]


class TextItem:
    """An item whose only part is a text that grows."""

    def __init__(self, item_id: str) -> None:
        self.id = item_id
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def grow(self, text: str) -> None:
        self._pieces.append(text)

    def part(self) -> dict[str, Any]:
        raise NotImplementedError

    def begun(self) -> dict[str, Any]:
        """As `output_item.added` shows it."""
        return self._shown("in_progress", [])

    def shown(self, status: ItemStatus) -> dict[str, Any]:
        return self._shown(status, [self.part()])

    def _shown(self, status: ItemStatus, content: list[Any]) -> dict[str, Any]:
        raise NotImplementedError


class MessageItem(TextItem):
    """Text, and the log-probabilities of its tokens, if they were asked for.

    They stay packed until the item closes, in 0.3 kB a token: entries take 4 kB and fifty objects,
    and thousands of readers may be in the middle of an answer.
    """

    def __init__(self, item_id: str, entry: LogprobEntry | None = None) -> None:
        super().__init__(item_id)
        self._packed: list[bytes] = []
        self._entry = entry
        self._entries: list[dict[str, Any]] | None = None

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

    def part(self) -> dict[str, Any]:
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": self.logprobs,
        }

    def _shown(self, status: ItemStatus, content: list[Any]) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }


class ReasoningItem(TextItem):
    """What the model thinks before it goes on."""

    delta_event = "response.reasoning_text.delta"

    def __init__(self, item_id: str, seal: Seal | None = None) -> None:
        super().__init__(item_id)
        self._seal = seal

    def part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}

    def _shown(self, status: ItemStatus, content: list[Any]) -> dict[str, Any]:
        head = {"id": self.id, "type": "reasoning", "status": status}
        sealed = self._seal.closed(self.text) if self._seal and content else None
        return {**head, "summary": [], "content": content, "encrypted_content": sealed}


class CallItem:
    """A call of a function."""

    delta_event = "response.function_call_arguments.delta"
    """"" where it has none"""
    done_event = "response.function_call_arguments.done"

    def __init__(self, item_id: str, call_id: str, style: CallStyle) -> None:
        self.id = item_id
        self.call_id = call_id
        self.style = style
        self._pieces: list[str] = []

    @property
    def _written(self) -> str:
        return "".join(self._pieces)

    def grow(self, text: str) -> str:
        """More of the arguments' JSON. Returns what of it shows as a delta."""
        self._pieces.append(text)
        return text

    def end(self) -> str:
        """The arguments have ended. Returns what else shows as a delta."""
        return ""

    def begun(self) -> dict[str, Any]:
        """As `output_item.added` shows it."""
        return {**self._head("function_call", "in_progress"), "arguments": ""}

    def shown(self, status: ItemStatus) -> dict[str, Any]:
        return {**self._head("function_call", status), "arguments": self._written}

    def done(self) -> dict[str, Any]:
        """Fields of the event that comes when all of it has come."""
        return {"name": self.style.name, "arguments": self._written}

    def _head(self, kind: str, status: ItemStatus) -> dict[str, Any]:
        head = {"id": self.id, "type": kind, "status": status, "call_id": self.call_id}
        head["name"] = self.style.name
        if self.style.namespace:
            head["namespace"] = self.style.namespace
        return head


class CustomCallItem(CallItem):
    """A call of a custom tool, which is given a text."""

    delta_event = "response.custom_tool_call_input.delta"
    done_event = "response.custom_tool_call_input.done"

    def __init__(self, item_id: str, call_id: str, style: CallStyle, *, plain: bool) -> None:
        """`plain`: the model writes the text itself, and no JSON."""
        super().__init__(item_id, call_id, style)
        self._reader = None if plain else TextInputReader()

    def grow(self, text: str) -> str:
        return super().grow(text if self._reader is None else self._reader.feed(text))

    def end(self) -> str:
        return "" if self._reader is None else super().grow(self._reader.finish())

    def begun(self) -> dict[str, Any]:
        return {**self._head("custom_tool_call", "in_progress"), "input": ""}

    def shown(self, status: ItemStatus) -> dict[str, Any]:
        return {**self._head("custom_tool_call", status), "input": self._written}

    def done(self) -> dict[str, Any]:
        return {"input": self._written}


class ClientCallItem(CallItem):
    """A call of a tool that OpenAI defines and the client runs. It shows when it is whole."""

    delta_event = done_event = ""

    def __init__(self, item_id: str, call_id: str, style: CallStyle) -> None:
        super().__init__(item_id, call_id, style)
        self._tool = BY_NAME[style.name]

    def grow(self, text: str) -> str:
        super().grow(text)
        return ""

    def begun(self) -> dict[str, Any]:
        return self._with("in_progress", "")

    def shown(self, status: ItemStatus) -> dict[str, Any]:
        return self._with(status, self._written)

    def _with(self, status: ItemStatus, arguments: str) -> dict[str, Any]:
        head = {"id": self.id, "type": self._tool.call_type, "status": status}
        return {**head, "call_id": self.call_id, **self._tool.fields(arguments)}


OutputItem = MessageItem | ReasoningItem | CallItem


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

    def __init__(
        self,
        parameters: ResponseParameters,
        job_id: str,
        entry: LogprobEntry | None = None,
        seal: Seal | None = None,
    ) -> None:
        self._seal = seal
        self._job_id = job_id
        self._styles = {
            name: CallStyle.from_record(style) for name, style in parameters.styles.items()
        }
        self._plain_input = parameters.form.kind == "input"
        self._entry = entry
        self._parser = TokenParser(parameters.form.parser())
        self._items: list[OutputItem] = []
        self._statuses: list[ItemStatus] = []
        self._open = False
        self._calls = 0
        self._fed = False
        self.cut_call = False
        """whether the output ended within a call"""
        self._waiting: list[bytes] = []  # log-probabilities of tokens whose text has not come yet

    @property
    def thought_tokens(self) -> int:
        return self._parser.thought_tokens

    def add(self, event: TokenEvent, logprobs: Sequence[bytes] = ()) -> list[Change]:
        """More of the model's text, and the packed log-probabilities of the tokens that brought
        it."""
        self._fed = self._fed or bool(event.text)
        parts = self._parser.feed(event)
        if logprobs:
            flags = zip(logprobs, self._parser.are_thoughts, strict=True)
            self._waiting += [packed for packed, is_thought in flags if not is_thought]
        return self._changes(parts)

    def finish(self, *, complete: bool, cut: bool) -> list[Change]:
        """The output has ended. `complete`: the model has said all that it wanted to say, or all up
        to a stop. `cut`: as `Parser.finish` has it."""
        changes = self._changes(self._parser.finish(cut=cut)) if self._fed or complete else []
        complete = complete and not self.cut_call
        if complete and all(isinstance(item, ReasoningItem) for item in self._items):
            self._close_before(changes)
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
                case Thought(text):
                    changes += self._thought(text)
                case CallBegun(_, name):
                    self._close_before(changes)
                    changes.append(self._begin_call(name))
                case Arguments(_, text):
                    self._grow_call(changes, self._call.grow(text))
                case CallCut():
                    self.cut_call = True
                case CallEnded(_, complete):
                    self.cut_call = not complete
                    self._grow_call(changes, self._call.end())
                    changes.append(self._close("completed" if complete else "incomplete"))
        return changes

    @property
    def _call(self) -> CallItem:
        item = self._items[-1]
        assert isinstance(item, CallItem)  # noqa: S101 - a parser gives arguments of a call alone
        return item

    def _grow_call(self, changes: list[Change], delta: str) -> None:
        if delta:
            changes.append(Grown(len(self._items) - 1, self._items[-1], delta))

    @property
    def _in_message(self) -> bool:
        return self._open and isinstance(self._items[-1], MessageItem)

    def _thought(self, text: str) -> list[Change]:
        changes: list[Change] = []
        if not (self._open and isinstance(self._items[-1], ReasoningItem)):
            self._close_before(changes)
            item_id = f"rs_{self._job_id}_{len(self._items)}"
            changes.append(self._begin(ReasoningItem(item_id, self._seal)))
        self._items[-1].grow(text)
        return [*changes, Grown(len(self._items) - 1, self._items[-1], text)]

    def _begin_message(self) -> Change:
        index = len(self._items)
        suffix = f"_{index}" if index else ""
        return self._begin(MessageItem(f"msg_{self._job_id}{suffix}", self._entry))

    def _begin_call(self, name: str) -> Change:
        index, call = len(self._items), self._calls
        self._calls += 1
        style = self._styles.get(name) or CallStyle("function", name)
        call_id = f"call_{self._job_id}_{call}"
        match style.kind:
            case "custom":
                return self._begin(
                    CustomCallItem(
                        f"ctc_{self._job_id}_{index}", call_id, style, plain=self._plain_input
                    )
                )
            case "client":
                prefix = BY_NAME[style.name].prefix
                return self._begin(
                    ClientCallItem(f"{prefix}_{self._job_id}_{index}", call_id, style)
                )
        return self._begin(CallItem(f"fc_{self._job_id}_{index}", call_id, style))

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
