"""One address before several gateways."""

import asyncio
from collections.abc import Sequence

from tests.support.proxy import Proxy


class Balancer(Proxy):
    """Each connection goes to the next gateway that accepts it. It can be cut as any other."""

    def __init__(self, ports: Sequence[int]) -> None:
        super().__init__(ports[0])
        self._ports = list(ports)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises: OSError: none accepts."""
        self._ports.append(self._ports.pop(0))
        for port in self._ports[:-1]:
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
        return await asyncio.open_connection("127.0.0.1", self._ports[-1])
