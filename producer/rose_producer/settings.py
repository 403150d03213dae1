"""What a producer can set, by argument or by environment (`ROSE_...`)."""

from pydantic import Field

from rose.settings import QueueOptions, QueueSettings


class ProducerOptions(QueueOptions, total=False):
    """The fields of `ProducerSettings` as keyword arguments, for type checkers and editors."""

    tenant: str
    reconnect_timeout_s: float
    poll_interval_s: float
    max_poll_interval_s: float


class ProducerSettings(QueueSettings):
    tenant: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.-]{0,64}$",
        description="tenant of the jobs unless a call names one; tenants share the slots",
    )
    reconnect_timeout_s: float = Field(
        default=60.0, gt=0, description="how long a stream waits for an unreachable Redis"
    )
    poll_interval_s: float = Field(
        default=5.0,
        gt=0,
        description="after this silence a stream reads the log in case a message was lost; "
        "doubled each time that none was",
    )
    max_poll_interval_s: float = Field(
        default=60.0, gt=0, description="longest time between two such reads"
    )
