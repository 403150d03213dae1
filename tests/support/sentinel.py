"""Redis in company, on loopback: a primary, its replica, and a Sentinel that swaps them."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import redis
from redis.exceptions import RedisError

from rose_cli.local.broker import EmbeddedBroker, find_redis_server, free_port
from tests.support.bench import wait_until
from tests.support.certificates import Certificates, add_tls_port, over_tls
from tests.support.proxy import Proxy

_SERVICE = "rose"
#: Longer than the silences that are no failover.
_DOWN_AFTER_MS = 5000


class LocalSentinel:
    """Everybody, the Sentinel and the replica too, is led to a proxy in front of each server."""

    def __init__(self, options: dict[str, str], certificates: Certificates | None = None) -> None:
        """`certificates`: all but the tests themselves use TLS."""
        self._options = [dict(options), dict(options)]
        self.nodes = [EmbeddedBroker(fake=False, options=own) for own in self._options]
        ports = [node.port for node in self.nodes]
        self._certificates = certificates
        self._own = {"port": str(free_port())}  # the Sentinel's
        self._port = self._public_port = int(self._own["port"])
        if certificates is not None:
            ports = [add_tls_port(own, certificates) for own in self._options]
            self._public_port = add_tls_port(self._own, certificates)
            for own in (*self._options, self._own):
                own["tls-replication"] = "yes"
        self.proxies = [Proxy(port) for port in ports]
        self.primary = 0
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        url = f"redis+sentinel://127.0.0.1:{self._public_port}/{_SERVICE}/0"
        return over_tls(url, self._certificates)

    def __enter__(self) -> Self:
        for proxy, options in zip(self.proxies, self._options, strict=True):
            self._stack.enter_context(proxy)
            options |= {
                "replica-announce-ip": "127.0.0.1",
                "replica-announce-port": str(proxy.port),
            }
        self._follow_primary(1)
        for node in self.nodes:
            self._stack.enter_context(node)
        self._watch()
        wait_until(self._is_whole, 30)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def fail_over(self, *, lossy: bool = False) -> None:
        """The primary dies, the replica takes its place, and the dead one comes back as a replica.

        What was written in the last moment and had not reached the replica is lost. What was
        written before this call is not, unless it is `lossy`, though the way between them may have
        been cut.
        """
        dead, heir = self.primary, 1 - self.primary
        if not lossy:
            wait_until(self._has_caught_up, 30)
        self.nodes[dead].stop()
        wait_until(lambda: self._named() == self.proxies[heir].port, 30)
        self.primary = heir
        self._options[heir].pop("replicaof", None)
        self._follow_primary(dead)
        self.nodes[dead].start()
        wait_until(self._is_whole, 30)

    @contextmanager
    def lagging(self) -> Iterator[None]:
        """Meanwhile the replica, which knows all until then, learns nothing. Who fails over before
        the end loses all of that."""
        wait_until(self._has_caught_up, 30)
        with redis.Redis(port=self.nodes[1 - self.primary].port, protocol=2) as replica:
            replica.config_set("masterauth", "wrong")  # the primary has no password
            replica.client_kill_filter(_type="master")
            yield
            replica.config_set("masterauth", "")

    def _follow_primary(self, index: int) -> None:
        self._options[index]["replicaof"] = f"127.0.0.1 {self.proxies[self.primary].port}"

    def _watch(self) -> None:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        config = Path(folder, "sentinel.conf")
        config.write_text(
            "".join(f"{name} {value}\n" for name, value in self._own.items())
            + f"bind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor {_SERVICE} 127.0.0.1 {self.proxies[0].port} 1\n"
            f"sentinel down-after-milliseconds {_SERVICE} {_DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {_SERVICE} 6000\n"
        )
        command = [find_redis_server() or "redis-server", str(config), "--sentinel"]
        process = self.nodes[0].begin(command, Path(folder, "log"))
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

    def _named(self) -> int | None:
        """The port of the primary, as the Sentinel says."""
        with redis.Redis(port=self._port, protocol=2) as client:
            address = client.sentinel_get_master_addr_by_name(_SERVICE)
        return int(address[1]) if address else None

    def _has_caught_up(self) -> bool:
        """The replica, with all that the primary has written by now."""
        with redis.Redis(port=self.nodes[self.primary].port, protocol=2) as primary:
            pipeline = primary.pipeline(transaction=False)
            pipeline.set("caught-up", "", px=1)
            pipeline.execute_command("WAIT", 1, 1000)
            return bool(pipeline.execute()[-1])

    def _is_whole(self) -> bool:
        """The replica follows, and the Sentinel knows it."""
        try:
            with redis.Redis(port=self.nodes[1 - self.primary].port, protocol=2) as replica:
                follows = replica.info("replication").get("master_link_status") == "up"
            with redis.Redis(port=self._port, protocol=2) as client:
                known = client.sentinel_slaves(_SERVICE)
        except RedisError:  # not yet up
            return False
        return follows and any(not replica["is_sdown"] for replica in known)
