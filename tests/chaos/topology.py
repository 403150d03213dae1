"""Which Redis a run has: one server, a cluster, or a primary with a replica; and its proxies.

On one server each process has a proxy of its own. The nodes of a cluster announce one address each
to everybody, so there each node has a proxy, and what befalls it befalls the partitions on it.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import redis

from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker
from tests.chaos.context import QUEUE, Options
from tests.chaos.trouble import Trouble
from tests.support.certificates import Certificates, add_tls_port, over_tls
from tests.support.cluster import LocalCluster
from tests.support.proxy import Proxy
from tests.support.sentinel import LocalSentinel

#: A subscriber that does not read is hung up on. The file is rewritten while faults strike, so that
#: a restart takes no longer in a long run.
_OPTIONS = {
    "appendfsync": "always",
    "auto-aof-rewrite-min-size": "4mb",
    "client-output-buffer-limit": "pubsub 256kb 64kb 2",
}


class Topology(ABC):
    """Entering starts it."""

    def __init__(self, partitions: int) -> None:
        self.partitions = [Partition(QUEUE, index) for index in range(partitions)]
        self.proxies: dict[str, Proxy] = {}
        self._stack = ExitStack()
        self._clients: dict[int, redis.Redis] = {}

    @abstractmethod
    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    @abstractmethod
    def nodes(self) -> Sequence[EmbeddedBroker]: ...

    @abstractmethod
    def url(self, process: str) -> str:
        """What a process is told."""

    @property
    @abstractmethod
    def direct_url(self) -> str:
        """For the harness: past the proxies, where that is possible."""

    @abstractmethod
    def node_of(self, partition: Partition) -> EmbeddedBroker: ...

    @abstractmethod
    def concerned(self, proxy: str) -> tuple[str | None, frozenset[int] | None]:
        """The process and the partitions that a fault of this proxy concerns; None: all of them."""

    def fail_over(self) -> None:
        """Where there is a replica: it takes the place of its primary, which dies."""
        raise NotImplementedError(f"{type(self).__name__} has no replica")

    def wait_ok(self) -> None:
        """Until a server that was away takes part again."""
        for node in self.nodes:
            self.client(node).ping()

    def on(self, node: EmbeddedBroker) -> frozenset[int]:
        """The partitions that it holds."""
        return frozenset(p.index for p in self.partitions if self.node_of(p) is node)

    def client(self, node: EmbeddedBroker) -> redis.Redis:
        """Straight to this one."""
        if node.port not in self._clients:
            client = redis.Redis(port=node.port, protocol=2)
            self._clients[node.port] = self._stack.enter_context(client)
        return self._clients[node.port]

    def client_of(self, partition: Partition) -> redis.Redis:
        return self.client(self.node_of(partition))

    def trouble(self, proxy: str, began: float, ended: float, what: str) -> Trouble:
        return Trouble(began, ended, what, *self.concerned(proxy))

    @property
    def cuts(self) -> Counter[str]:
        return Counter(mode for proxy in self.proxies.values() for _, mode in proxy.cut_log)

    def cut_troubles(self) -> list[Trouble]:
        return [
            self.trouble(name, cut_s - 2.0, cut_s + 1.0, "cut")
            for name, proxy in self.proxies.items()
            for cut_s, _ in proxy.cut_log
        ]


class OneServer(Topology):
    def __init__(self, processes: Iterable[str], certificates: Certificates | None = None) -> None:
        super().__init__(1)
        options = dict(_OPTIONS)
        self._server = EmbeddedBroker(fake=False, options=options)
        self._certificates = certificates
        port = self._server.port
        if certificates is not None:
            port = add_tls_port(options, certificates)
        self.proxies = {name: Proxy(port) for name in processes}

    def __enter__(self) -> Self:
        self._stack.enter_context(self._server)
        for proxy in self.proxies.values():
            self._stack.enter_context(proxy)
        return self

    @property
    def nodes(self) -> Sequence[EmbeddedBroker]:
        return [self._server]

    def url(self, process: str) -> str:
        return over_tls(self.proxies[process].url, self._certificates)

    @property
    def direct_url(self) -> str:
        return self._server.url

    def node_of(self, partition: Partition) -> EmbeddedBroker:
        return self._server

    def concerned(self, proxy: str) -> tuple[str | None, frozenset[int] | None]:
        return proxy, None


class Sentinel(Topology):
    """A primary and its replica."""

    def __init__(self, certificates: Certificates | None = None) -> None:
        super().__init__(1)
        # The backlog would count as growth.
        self._servers = LocalSentinel(_OPTIONS | {"repl-backlog-size": "64kb"}, certificates)
        self.proxies = {f"node-{i}": proxy for i, proxy in enumerate(self._servers.proxies)}

    def __enter__(self) -> Self:
        self._stack.enter_context(self._servers)
        return self

    @property
    def nodes(self) -> Sequence[EmbeddedBroker]:
        """The primary: the replica is written to by it alone."""
        return [self._servers.nodes[self._servers.primary]]

    def url(self, process: str) -> str:
        return self._servers.url

    @property
    def direct_url(self) -> str:
        return self._servers.url

    def fail_over(self) -> None:
        self._servers.fail_over()

    def node_of(self, partition: Partition) -> EmbeddedBroker:
        return self.nodes[0]

    def concerned(self, proxy: str) -> tuple[str | None, frozenset[int] | None]:
        return None, None


class Cluster(Topology):
    """Three nodes without replicas, and a partition on each at least."""

    def __init__(self, certificates: Certificates | None = None) -> None:
        self._cluster = LocalCluster(options=_OPTIONS, announced=True, certificates=certificates)
        super().__init__(_spread(self._cluster))
        self.proxies = {f"node-{i}": proxy for i, proxy in enumerate(self._cluster.proxies)}

    def __enter__(self) -> Self:
        self._stack.enter_context(self._cluster)
        return self

    def wait_ok(self) -> None:
        self._cluster.wait_ok()

    @property
    def nodes(self) -> Sequence[EmbeddedBroker]:
        return self._cluster.nodes

    def url(self, process: str) -> str:
        return self._cluster.url

    @property
    def direct_url(self) -> str:
        return self._cluster.url

    def node_of(self, partition: Partition) -> EmbeddedBroker:
        return self._cluster.node_of(partition)

    def concerned(self, proxy: str) -> tuple[str | None, frozenset[int] | None]:
        return None, self.on(self.nodes[list(self.proxies).index(proxy)])


def _spread(cluster: LocalCluster) -> int:
    """The least number of partitions with which each node has one."""
    count = len(cluster.nodes)
    while len({cluster.node_of(Partition(QUEUE, i)).port for i in range(count)}) < len(
        cluster.nodes
    ):
        count += 1
    return count


def topology_of(options: Options, folder: Path, processes: Iterable[str]) -> Topology:
    """As a run's options ask; its certificates are kept in its folder."""
    certificates = Certificates(folder) if options.tls else None
    match options.topology:
        case "one":
            return OneServer(processes, certificates)
        case "cluster":
            return Cluster(certificates)
        case "sentinel":
            return Sentinel(certificates)
