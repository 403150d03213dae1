"""What a producer can set, by argument or by environment (`ROSE_...`)."""

from __future__ import annotations

from pydantic import Field

from rose.settings import QueueSettings


class ProducerSettings(QueueSettings):
    tenant: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.-]{0,64}$",
        description="whose jobs these are where a call does not say it: tenants share the slots",
    )
    reconnect_timeout_s: float = Field(
        default=60.0, gt=0, description="how long a stream rides out a Redis that is away"
    )
    poll_interval_s: float = Field(
        default=5.0,
        gt=0,
        description="how soon a silent stream looks into the log in case a message was lost; "
        "doubled each time that nothing was",
    )
    max_poll_interval_s: float = Field(
        default=60.0, gt=0, description="the longest time between two such looks"
    )
