"""Gateway processes, started as a user would: `rose gateway`."""

from rose_cli.demo.broker import free_port
from rose_cli.demo.processes import ServiceProcess


class GatewayProcess(ServiceProcess):
    """One `rose gateway` on loopback. Leaving the context kills it if it still runs."""

    kind = "gateway"

    def __init__(self, name: str, redis_url: str, **settings: str | float) -> None:
        """`settings` as in rose_gateway.settings. What it keeps of files goes with it, if `storage`
        is not given."""
        port = free_port()
        given = {"redis_url": redis_url, "port": port, **settings}
        super().__init__(name, port, ("rose_cli", "gateway"), given)
        if "storage" not in settings:
            self._command.append(f"--storage={self._folder.name}/files")

    @property
    def url(self) -> str:
        """The base URL for OpenAI's SDKs."""
        return f"http://127.0.0.1:{self.http_port}/v1"
