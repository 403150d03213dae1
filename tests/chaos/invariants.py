"""What must hold."""

from enum import StrEnum

from tests.chaos.context import LEASE_S

#: From the loss of a worker until each of its jobs runs on: the lease, a look for lapsed leases
#: and a free slot; then each suspect in its turn, which is a call and a step for each. Two workers
#: may be lost at once, and all their jobs be suspects: 48 turns of a tenth of a second.
TAKEOVER_S = LEASE_S + 2.0 + 5.0
#: A job may be behind one that came later, by the order of the queue, for no longer: a worker may
#: have fetched it and died.
BEHIND_S = TAKEOVER_S
#: Of an asyncio client, to one server.
MAX_CONNECTIONS = 64


class Invariant(StrEnum):
    LOST = "lost: every token and every end arrives"
    DOUBLED = "doubled: nothing arrives or runs twice"
    REORDERED = "reordered: tokens arrive in order"
    SEAMS = "seams: the text is that of an undisturbed run"
    DEADLINES = "deadlines: no job begins after its own, whoever's clock is wrong"
    RAISED = "raised: no stream raised anything"
    ENDS = "ends: one terminal event, the last one"
    OUTCOMES = "outcomes: innocent jobs finish, others end as they must"
    LOG = "log: holds what was delivered, under the ids of the protocol"
    MOVED = "moved: no job leaves a worker that is alive and well"
    TAKEOVER = f"takeover: a lost worker's jobs go on within {TAKEOVER_S:g} s"
    ORDER = f"order: by priority and age, nobody is behind for more than {BEHIND_S:g} s"
    CAPS = "caps: no tenant has more jobs than it may, queued or running"
    SHARES = "shares: no tenant that waits falls behind another by more than what runs"
    DEAD_LETTERS = "dead letters: the poison and garbage, each once, nothing else"
    EMPTY = "empty: no entry, pending entry or queued token is left"
    EXPIRY = "expiry: what has expired is gone with its key, and a dead letter is retried once"
    CROWD = f"crowd: many streams in one client agree, over at most {MAX_CONNECTIONS} connections"
    GOES_ON = "goes on: with memory at its limit, one of several nodes frozen, or the listener dead"
    SLOTS = "slots: batch and KV cache of the workers are empty"
    MEMORY = "memory: Redis is back near its start, nothing stays for ever"
    DRAINS = "drains: exit code 0 within the grace period"
    PROCESSES = "processes: nobody ends by himself"
