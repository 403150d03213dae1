"""The limits of tenants, and their status."""

from collections.abc import Iterable

from rose.protocol.calls.call import Call
from rose.protocol.keys import GROUP, Partition
from rose.protocol.scripts import load
from rose.protocol.tenants import TenantLimits


def set_tenant(partition: Partition, name: str, limits: TenantLimits | None) -> Call:
    """`limits`: the share of this partition; None to forget them. Replies 1 if it had some."""
    text = "" if limits is None else limits.encode()
    return Call(load("set_tenant"), [partition.load, partition.tenant_limits], [name, text])


def rename_tenant(partition: Partition, old: str, new: str, *, count: int) -> Call:
    """Give at most `count` jobs of a tenant another name, and then its limits. Reply: MORE, DONE or
    CONFLICT, and how many jobs have another name now."""
    keys = [partition.load, partition.tenant_limits, partition.tenant_jobs]
    return Call(load("rename_tenant"), keys, [GROUP, old, new, count])


def tenant_status(partition: Partition, *, top: int = 0, names: Iterable[str] = ()) -> Call:
    """How these tenants stand, and the `top` with the most jobs that have not ended.
    `read_tenants` reads the replies of all partitions."""
    keys = [partition.load, partition.tenant_limits, partition.tenant_jobs]
    return Call(load("tenant_status"), keys, [GROUP, top, *names])
