"""Redis in company, on loopback: a cluster of three nodes without replicas."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import redis
from pydantic import SecretStr
from redis.crc import key_slot

from rose.protocol import Partition
from rose.transport.connection import connect
from rose_cli.local.broker import EmbeddedBroker, free_port
from rose_producer import Client, ProducerSettings
from tests.support.bench import Bench, create_groups, wait_until
from tests.support.certificates import Certificates, add_tls_port, over_tls
from tests.support.proxy import Proxy
from tests.support.troubles import frozen

_SLOTS = 16384


class LocalCluster:
    """Each node may be stopped and started again: it keeps its slots and its data (AOF)."""

    def __init__(
        self,
        nodes: int = 3,
        *,
        options: Mapping[str, str] | None = None,
        announced: bool = False,
        certificates: Certificates | None = None,
    ) -> None:
        """`announced`: clients are led to a proxy in front of each node.
        `certificates`: they and the nodes themselves use TLS."""
        self._stack = ExitStack()
        # The default bus port is 10,000 higher, which may exceed 65,535.
        self._options = [
            {
                "cluster-enabled": "yes",
                "cluster-port": str(free_port()),
                "cluster-node-timeout": "1000",
                "cluster-require-full-coverage": "no",
                "appendfsync": "always",
                **(options or {}),
            }
            for _ in range(nodes)
        ]
        self.nodes = [EmbeddedBroker(fake=False, options=own) for own in self._options]
        self._certificates = certificates
        self._ports = [node.port for node in self.nodes]
        if certificates is not None:
            self._ports = [add_tls_port(own, certificates) for own in self._options]
            for own in self._options:
                own["tls-cluster"] = "yes"
        self.proxies = [Proxy(port) for port in self._ports] if announced else []

    @property
    def url(self) -> str:
        ports = [proxy.port for proxy in self.proxies] or self._ports
        url = "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        return over_tls(url, self._certificates)

    def __enter__(self) -> Self:
        for proxy, options in zip(self.proxies, self._options, strict=False):
            self._stack.enter_context(proxy)
            tls = "" if self._certificates is None else "tls-"
            options[f"cluster-announce-{tls}port"] = str(proxy.port)
        for node in self.nodes:
            self._stack.enter_context(node)
        first, *others = self.nodes
        share = -(-_SLOTS // len(self.nodes))
        for number, node in enumerate(self.nodes):
            last = min((number + 1) * share, _SLOTS) - 1
            self.ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            self.ask(node, "CLUSTER", "ADDSLOTSRANGE", number * share, last)
        for node in others:
            bus = int(self.ask(first, "CONFIG", "GET", "cluster-port")[1])
            self.ask(node, "CLUSTER", "MEET", "127.0.0.1", first.port, bus)
        self.wait_ok()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait_ok(self) -> None:
        """Until every node knows all the others and serves its slots."""
        wait_until(lambda: all(self._is_ok(node) for node in self.nodes))

    def node_of(self, partition: Partition) -> EmbeddedBroker:
        """Where its slot was in the beginning."""
        return self.nodes[_slot(partition) // -(-_SLOTS // len(self.nodes))]

    @contextmanager
    def frozen(self, node: EmbeddedBroker) -> Iterator[None]:
        """Silent, and afterwards a part of the cluster again."""
        with frozen(node.port):
            yield
        self.wait_ok()

    def move(self, partition: Partition, target: EmbeddedBroker) -> None:
        """Its slot and all its keys, as an operator who adds a node would."""
        slot, source = _slot(partition), self.node_of(partition)
        ids = {node: self.ask(node, "CLUSTER", "MYID").decode() for node in (source, target)}
        self.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        while keys := self.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
            names = [key.decode() for key in keys]
            self.ask(*(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS"), *names)
        for node in (target, source, *self.nodes):
            self.ask(node, "CLUSTER", "SETSLOT", slot, "NODE", ids[target])

    def ask(self, node: EmbeddedBroker, *command: str | int) -> Any:
        with redis.Redis(port=node.port, protocol=2) as client:
            reply = client.execute_command(command[0], *command[1:])
        return _flat(reply)

    def _is_ok(self, node: EmbeddedBroker) -> bool:
        with redis.Redis(port=node.port, protocol=2) as client:
            info = client.cluster("info")
        return (
            info["cluster_state"] == "ok"
            and int(info["cluster_known_nodes"]) == len(self.nodes)
            and int(info["cluster_slots_ok"]) == _SLOTS
        )


class BenchAt(Bench):
    """A producer and hand-played workers on a partition of whatever the URL leads to."""

    def __init__(self, url: str, partition: Partition) -> None:
        settings = ProducerSettings(
            redis_url=SecretStr(url),
            queue=partition.queue,
            partitions=partition.index + 1,
            poll_interval_s=0.5,
        )
        self.redis = connect(settings, retries=1)  # type: ignore[assignment]  # all that is asked, it can
        self.partition = partition
        self.client = Client(settings)
        create_groups(self.redis, partition)


def _slot(partition: Partition) -> int:
    return key_slot(partition.load.encode())


def _flat(reply: Any) -> Any:
    """A map as the list of its keys and values, which it was on the wire."""
    if isinstance(reply, dict):
        return [word for pair in reply.items() for word in pair]
    return reply


def channels(cluster: LocalCluster, node: EmbeddedBroker) -> Sequence[bytes]:
    """Those that somebody listens to on this node."""
    found: Sequence[bytes] = cluster.ask(node, "PUBSUB", "SHARDCHANNELS")
    return found
