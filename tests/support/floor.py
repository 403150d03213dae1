"""Jobs of tenants, and one worker that runs them by hand."""

from typing import Any

from rose.protocol.calls import Lease, Taken
from rose_producer import Job, TokenEvent
from tests.support.bench import Bench


class Floor:
    """Jobs of tenants, and one worker that runs them by hand."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._tenants: dict[str, str] = {}
        self.leases: list[tuple[str, Lease]] = []

    def submit(self, tenant: str, count: int = 1, **options: Any) -> list[Job]:
        jobs = [self._bench.client.submit("x", tenant=tenant, **options) for _ in range(count)]
        self._tenants |= {job.id: tenant for job in jobs}
        return jobs

    def begin(self, slots: int) -> list[str]:
        """Fetch and take at most `slots` jobs. Returns whose they are, in alphabetical order."""
        begun = []
        for job in self._bench.fetch("w", slots):
            taken = self._bench.take("w", job)
            assert isinstance(taken, Taken)
            lease = Lease(self._bench.partition, *job, taken.take_id)
            begun.append((self._tenants[job.job_id], lease))
        self.leases += begun
        return sorted(tenant for tenant, _ in begun)

    def end_first(self, tokens: int = 0) -> str:
        """End the job that began first, with so many tokens. Returns whose it was."""
        tenant, lease = self.leases.pop(0)
        if tokens:
            event = TokenEvent(index=0, token_ids=(7,) * tokens, text="x")
            assert self._bench.append(lease, event) == ["OK"]
        assert self._bench.finish(lease, tokens) == "OK"
        return tenant
