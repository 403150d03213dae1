"""On whose behalf a request is served."""

from dataclasses import dataclass

from rose.protocol import Priority
from rose_gateway.access.keys import KeyLimits

_NO_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose jobs a request may see, and what it may ask for."""

    key_id: str = ""
    """"" where the gateway is open to all"""
    limits: KeyLimits = _NO_LIMITS
    tenant: str = ""
    """whose share its jobs come out of; "" for that of the gateway's setting, if it has one"""

    def may_use(self, model: str) -> bool:
        return self.limits.models is None or model in self.limits.models

    def may_have(self, priority: Priority) -> bool:
        return priority.level >= self.limits.max_priority.level
