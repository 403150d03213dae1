"""Settings by which a Redis loses jobs: what a worker says at its start, and `rose doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loss:
    setting: str
    harm: str
    remedy: str

    def describe(self, where: str = "") -> str:
        """`where`: which server, with a space before it."""
        return f"{self.setting}{where}: {self.harm}"


def loss_of_eviction(policy: str) -> Loss | None:
    """Of Redis' maxmemory-policy."""
    if policy == "noeviction":
        return None
    return Loss(
        f"maxmemory-policy is {policy}",
        "a full Redis throws jobs and tokens away",
        "CONFIG SET maxmemory-policy noeviction, and in redis.conf",
    )


#: Where Redis' appendonly is no.
NO_LOG = Loss(
    "appendonly is no",
    "a restart of Redis loses jobs and tokens",
    "CONFIG SET appendonly yes, and in redis.conf",
)
