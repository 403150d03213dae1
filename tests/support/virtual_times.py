"""The virtual times of tenants, in plain Python: what the scripts must compute.

Sheng et al., Fairness in Serving Large Language Models (OSDI 2024), with start tags as in
start-time fair queueing (Goyal et al., SIGCOMM 1996): a job is charged an advance when
it is given to a worker, and what it has used when it ends.
"""

from dataclasses import dataclass, field

#: Tokens of an answer that are charged before it begins.
_ADVANCE = 128
#: A longer answer is charged in portions: a quarter of what it has, and so much at least.
_MIN_PORTION = 16
#: Two ways to add the same numbers differ by less.
_ROUNDING = 1e-6


@dataclass(slots=True)
class Tenant:
    weight: float = 1.0
    time: float = 0.0
    running: int = 0
    ready: bool = False
    """It has a job waiting that may begin."""


@dataclass(slots=True)
class VirtualTimes:
    tenants: dict[str, Tenant] = field(default_factory=dict)
    now: float = 0.0
    """of whoever was given a job last, without what was charged in advance"""
    _charged: dict[str, int] = field(default_factory=dict)
    """of each job that runs"""

    def tenant(self, name: str) -> Tenant:
        return self.tenants.setdefault(name, Tenant())

    def place(self, name: str, *, ready: bool) -> None:
        """Who comes back has saved up nothing."""
        tenant = self.tenant(name)
        if ready and not tenant.ready:
            tenant.time = max(tenant.time, self.now)
        tenant.ready = ready

    def may_be_next(self, name: str) -> bool:
        tenant = self.tenants[name]
        least = min(other.time for other in self.tenants.values() if other.ready)
        return tenant.ready and tenant.time <= least + _ROUNDING

    def give(self, name: str, job: str, prompt: int, *, passes: bool) -> None:
        """What passes is charged, but says nothing of how far the others are."""
        tenant = self.tenants[name]
        if not passes:
            reached = tenant.time - tenant.running * _ADVANCE / tenant.weight
            self.now = max(self.now, reached)
        tenant.time += (prompt + _ADVANCE) / tenant.weight
        tenant.running += 1
        self._charged[job] = _ADVANCE

    def log(self, name: str, job: str, tokens: int) -> None:
        if tokens <= self._charged[job]:
            return
        upto = tokens + max(_MIN_PORTION, tokens // 4)
        self.tenants[name].time += (upto - self._charged[job]) / self.tenants[name].weight
        self._charged[job] = upto

    def end(self, name: str, job: str, tokens: int) -> None:
        tenant = self.tenants[name]
        tenant.time += (tokens - self._charged.pop(job)) / tenant.weight
        tenant.running -= 1
