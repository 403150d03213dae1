"""What must be true of what a receiver was told."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from tests.chaos.findings import Finding
from tests.chaos.webhooks.receiver import Note


class Rule(StrEnum):
    LOST = "lost: every end was told"
    FORGED = "forged: every event has a right signature"
    DOUBLED = "doubled: an end has one event, with one id, however often it comes"
    WRONG = "wrong: an event says how it ended"
    ENDS = "ends: nobody dies by himself, and nothing is left to be told"


def check_notes(notes: Sequence[Note], ends: Mapping[str, str]) -> Iterator[Finding]:
    """`ends`: by id of a response or a batch, the type of the event that its status asks for."""
    forged = Counter(note.webhook_id for note in notes if note.event is None)
    for webhook_id, count in forged.items():
        yield Finding(Rule.FORGED, f"{webhook_id}: {count} times")
    told: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    taken: set[str] = set()
    for note in notes:
        if note.event is None:
            continue
        object_id = note.event["data"]["id"]
        told[object_id].add((note.webhook_id, note.event["type"]))
        if note.event["id"] != note.webhook_id:
            yield Finding(Rule.WRONG, f"{note.webhook_id} has the event {note.event['id']}")
        if note.taken:
            taken.add(object_id)
    for object_id in ends:
        if object_id not in taken:
            yield Finding(
                Rule.LOST, f"{object_id}: {len(told.get(object_id, ()))} events, none taken"
            )
    for object_id, events in told.items():
        types = {event_type for _, event_type in events}
        if len(events) > 1:
            yield Finding(Rule.DOUBLED, f"{object_id}: {sorted(events)}")
        if object_id in ends and types != {ends[object_id]}:
            yield Finding(Rule.WRONG, f"{object_id}: {sorted(types)} for {ends[object_id]}")
