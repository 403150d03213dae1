"""Tenants of a queue: set their shares and limits, and read their status.

    with Tenants(client.settings) as tenants:
        tenants.set("search", TenantLimits(weight=3, max_running_jobs=8))
        print(tenants.show("search").waiting)

A queue with several partitions divides each limit among them.
"""

from collections.abc import Collection
from typing import Any

from rose import transport
from rose.errors import InvalidParameter
from rose.protocol import Partition, Priority, calls
from rose.protocol.tenants import (
    PASSES,
    TenantLimits,
    TenantsStatus,
    TenantStatus,
    check_tenant,
    decode_passing,
    encode_passing,
    merged_limits,
)
from rose_producer.partitions import AllPartitions
from rose_producer.tenant_status import tenants_status, top_tenants

#: Tenants per read of the hash that has their limits.
_CHUNK = 1000

#: Jobs that one call renames: some milliseconds in which Redis serves nobody else.
_RENAMED = 1000


class Tenants(AllPartitions):
    """The tenants of a queue, over all its partitions."""

    def set(self, name: str, limits: TenantLimits) -> None:
        """Set the share and the limits of a tenant, all of them. They hold from the next job on;
        what waits or runs already stays. If it fails it may hold in some partitions: repeat it.

        Raises: InvalidParameter, BrokerUnavailable
        """
        check_tenant(name)
        if not isinstance(limits, TenantLimits):
            raise InvalidParameter(
                f"limits: must be TenantLimits, not {type(limits).__name__}; remove takes them away"
            )
        partitions = len(self._partitions)
        shares = [limits.share(index, partitions) for index in range(partitions)]
        with transport.broker_errors():
            for partition, share in zip(self._partitions, shares, strict=True):
                self._redis.run(calls.set_tenant(partition, name, share))

    def remove(self, name: str) -> bool:
        """Forget the limits of a tenant: from then on it has weight 1 and none. False if it had
        none. Its jobs continue.

        Raises: InvalidParameter, BrokerUnavailable
        """
        check_tenant(name)
        with transport.broker_errors():
            had = [self._redis.run(calls.set_tenant(p, name, None)) for p in self._partitions]
        return any(had)

    def set_passing(self, classes: Collection[Priority]) -> None:
        """Let jobs of these classes go before all others, whatever their tenants' shares: those
        that come from now on. They are charged to their tenants and held to their limits.

        Raises: InvalidParameter, BrokerUnavailable
        """
        if not (
            isinstance(classes, Collection) and all(isinstance(one, Priority) for one in classes)
        ):
            raise InvalidParameter(f"classes: must be Priorities in a set, not {classes!r:.80}")
        text = encode_passing(classes)
        words = ("HSET", PASSES, text) if text else ("HDEL", PASSES)
        with transport.broker_errors():
            for partition in self._partitions:
                self._redis.execute(words[0], partition.tenant_limits, *words[1:])

    def passing(self) -> tuple[Priority, ...]:
        """The classes whose jobs pass between tenants, the most urgent first.

        Raises: BrokerUnavailable
        """
        with transport.broker_errors():
            return decode_passing(
                self._redis.execute("HMGET", partition.tenant_limits, PASSES)[0]
                for partition in self._partitions
            )

    def rename(self, old: str, new: str) -> int:
        """Give a tenant another name: its limits, and its jobs that wait or run. Returns how many
        jobs it had. Jobs that come with the old name meanwhile are found by another call. If it
        fails some jobs may have the new name already, with the same limits: repeat it.

        Raises: InvalidParameter: both have limits, and not the same; BrokerUnavailable
        """
        for name in (old, new):
            check_tenant(name)
        if old == new:
            raise InvalidParameter(f"tenant: {old} has this name already")
        with transport.broker_errors():
            return sum(self._rename(partition, old, new) for partition in self._partitions)

    def list(self) -> dict[str, TenantLimits]:
        """The tenants that have a weight or limits of their own, by name.

        Raises: BrokerUnavailable, MalformedMessage
        """
        with transport.broker_errors():
            return merged_limits(self._limits(partition) for partition in self._partitions)

    def show(self, name: str) -> TenantStatus:
        """Raises: InvalidParameter, BrokerUnavailable, MalformedMessage"""
        check_tenant(name)
        partitions = self._partitions
        status = self._redis.call(lambda redis: tenants_status(redis, partitions, names=[name]))
        return status.top[0]

    def top(self, count: int) -> TenantsStatus:
        """As `Client.tenants`.

        Raises: InvalidParameter, BrokerUnavailable, MalformedMessage
        """
        return self._redis.call(lambda redis: top_tenants(redis, self._partitions, count))

    def _rename(self, partition: Partition, old: str, new: str) -> int:
        jobs, outcome = 0, b"MORE"
        while outcome == b"MORE":
            outcome, count = self._redis.run(
                calls.rename_tenant(partition, old, new, count=_RENAMED)
            )
            jobs += int(count)
        if outcome == b"CONFLICT":
            raise InvalidParameter(
                f"tenant: {new} has limits of its own, other than those of {old}: take away those "
                f"that shall not stay (rose tenants remove {old}, or {new}), then rename"
            )
        return jobs

    def _limits(self, partition: Partition) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        cursor: Any = 0
        while True:
            cursor, flat = self._redis.execute(
                "HSCAN", partition.tenant_limits, cursor, "COUNT", _CHUNK
            )
            found |= zip(flat[::2], flat[1::2], strict=True)
            if int(cursor) == 0:
                return found
