"""To which addresses a gateway connects for a webhook: whoever registers a URL may not make it ask
what only it can reach, such as its host's loopback or the metadata of a cloud."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_GLOBAL_UNICAST = IPv6Network("2000::/3")
#: Addresses in which an IPv4 address stands, as a translator reads it (RFC 6052).
_TRANSLATED = IPv6Network("64:ff9b::/96")


class AddressRefused(Exception):
    """A name stands for addresses that no webhook may be sent to."""


def is_public(address: Address) -> bool:
    """Whether it is one of the public internet, and so is the one that stands in it."""
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast
    inner = address.ipv4_mapped or address.sixtofour
    if inner is None and address in _TRANSLATED:
        inner = IPv4Address(address.packed[-4:])
    if inner is not None:
        return is_public(inner)
    return address in _GLOBAL_UNICAST and address.is_global and address.teredo is None


class AddressPolicy:
    def __init__(self, allowed: Iterable[Network] = ()) -> None:
        """`allowed`: beside the public internet."""
        self._allowed = tuple(allowed)

    def allows(self, address: Address, *, encrypted: bool) -> bool:
        """What is not `encrypted` goes to allowed networks only."""
        plain = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        known = plain or address
        if any(known in network for network in self._allowed):
            return True
        return encrypted and is_public(known)

    async def resolve(self, host: str, port: int, *, encrypted: bool) -> Sequence[str]:
        """The addresses of a name that may be connected to. Connect to them, and not to the name:
        it may stand for others when it is asked again.

        Raises: AddressRefused: there is none; OSError: it stands for nothing
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        texts = dict.fromkeys(str(address[0]) for *_, address in found)
        # An address with a scope is of this host's own link.
        addresses = [ip_address(text) for text in texts if "%" not in text]
        good = [str(one) for one in addresses if self.allows(one, encrypted=encrypted)]
        if not good:
            which = ", ".join(texts)
            if not encrypted and any(map(is_public, addresses)):
                raise AddressRefused(f"http:// to {which}: use https://")
            raise AddressRefused(f"{which} is not public, nor in ROSE_GATEWAY_WEBHOOK_NETWORKS")
        return good
