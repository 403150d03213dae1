"""What a log that was written again has in common with the events that were delivered of it."""

from collections.abc import Collection, Iterable, Sequence

from rose.protocol import Event, TokenEvent


def agree(event: Event, delivered: Iterable[Event]) -> bool:
    """Whether the tokens that both have are the same."""
    return all(
        _tokens(event, first, last) == _tokens(one, first, last)
        for one in delivered
        if (first := max(one.index, event.index)) < (last := min(one.cursor, event.cursor))
    )


def text_after(
    event: TokenEvent, delivered: Collection[Event], logged: Sequence[Event]
) -> str | None:
    """The text of `event` behind what was delivered, by comparing texts from where an event began
    in both; None if there is no such place. `logged`: the events before it."""
    beginnings, text = {one.index for one in delivered}, ""
    for one in (event, *reversed(logged)):
        text = _text(one) + text
        if one.index in beginnings:
            had = "".join(_text(other) for other in delivered if other.index >= one.index)
            rest = text.removeprefix(had)
            is_beginning = text.startswith(had) and len(rest) <= len(event.text)
            return rest if is_beginning else None
    return None


def _tokens(event: Event, first: int, last: int) -> tuple[int, ...]:
    if not isinstance(event, TokenEvent):
        return ()
    return event.token_ids[first - event.index : last - event.index]


def _text(event: Event) -> str:
    return event.text if isinstance(event, TokenEvent) else ""
