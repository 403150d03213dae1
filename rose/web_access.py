"""By which names a server is asked, and which web pages may ask it.

A browser carries requests of any page that it shows to any address that it reaches. A page says who
it is by `Origin`; one that has bent its own name to a server's address is told by `Host`.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

_HOST = re.compile(
    r"(?P<name>[A-Za-z0-9_]([A-Za-z0-9_.-]{0,253})|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?"
)
_ORIGIN = re.compile(r"https?://(?P<host>[^/?#@\\\s]+)", re.IGNORECASE)

#: Accepts every name, or every origin.
ANY = "*"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=256)
def host_of(header: str) -> str | None:
    """The name or address in a `Host`, in lower case, without port, brackets or a last dot. None:
    it is no such header's value."""
    match = _HOST.fullmatch(header)
    if match is None:
        return None
    name = match["name"].lower()
    if not name.startswith("["):
        return name.rstrip(".")
    try:
        return ipaddress.IPv6Address(name[1:-1]).compressed
    except ValueError:
        return None


def listed(setting: str) -> tuple[str, ...]:
    """The names of a setting, which commas separate."""
    return tuple(name.strip().lower() for name in setting.split(",") if name.strip())


class WebAccess:
    """Decides for one server by the headers of a request."""

    def __init__(
        self, bound_to: str, hosts: Iterable[str] = (), origins: Iterable[str] = ()
    ) -> None:
        """`bound_to`: the server's address in its settings. `hosts`: further names by which it is
        asked, `*.example.com` for all below one, `*` for any. `origins`: of pages that may use it,
        such as `https://chat.example.com`."""
        self._hosts = {bound_to.lower().strip("[]"), *hosts}
        self._suffixes = tuple(host[1:] for host in self._hosts if host.startswith("*."))
        self._origins = frozenset(origin.rstrip("/") for origin in origins)

    def foreign(self, headers: Mapping[str, str], local_address: str) -> str | None:
        """The header that names somebody else: host, origin or sec-fetch-site; None: none does.
        `local_address`: at which the connection arrived, which no name can be bent to."""
        host = headers.get("host")
        name = "" if host is None else host_of(host)
        if host is not None and not (name and self._is_own(name, local_address)):
            return "host"
        origin = headers.get("origin")
        if origin is not None:
            return None if self._may_ask(origin.lower(), (host or "").lower()) else "origin"
        if headers.get("sec-fetch-site", "").lower() == "cross-site" and ANY not in self._origins:
            return "sec-fetch-site"
        return None

    def shares_with(self, origin: str) -> bool:
        """Whether a page of this origin, which is not the server's own, may read answers."""
        return origin.lower() in self._origins or ANY in self._origins

    def _is_own(self, name: str, local_address: str) -> bool:
        return (
            name in self._hosts
            or is_loopback(name)
            or name == local_address
            or ANY in self._hosts
            or (bool(self._suffixes) and name.endswith(self._suffixes))
        )

    def _may_ask(self, origin: str, host: str) -> bool:
        if origin in self._origins or ANY in self._origins:
            return True
        match = _ORIGIN.fullmatch(origin)
        name = host_of(match["host"]) if match else None
        if match is None or name is None:
            return False
        if match["host"] == host or _default_port(origin, match["host"]) == host:
            return True
        # A page of this machine, that asks for a server of this machine.
        return is_loopback(name) and is_loopback(host_of(host) or "")


def _default_port(origin: str, host: str) -> str:
    """A browser leaves a scheme's own port out, a client or a proxy may write it."""
    return f"{host}:{443 if origin.startswith('https:') else 80}"
