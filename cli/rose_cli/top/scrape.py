"""Reads the metrics that workers serve."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from rose.errors import ConfigurationError

DEFAULT_PORT = 9400

_TIMEOUT_S = 2.0
_MAX_BYTES = 4 * 1024 * 1024

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Scrape:
    """`samples`: those of the same name added up, over all their labels."""

    address: str
    worker: str
    samples: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    """of its model: name, device, dtype"""


def addresses(places: Iterable[str]) -> list[Address]:
    """`HOST` or `HOST:PORT` each; a name that stands for many addresses is all of them.

    Raises: ConfigurationError
    """
    found: dict[Address, None] = {}
    for place in places:
        host, _, port = place.removeprefix("http://").partition("/")[0].partition(":")
        if not host or not (port or str(DEFAULT_PORT)).isdecimal():
            raise ConfigurationError(f"--metrics {place!r}: give HOST or HOST:PORT")
        try:
            known = socket.getaddrinfo(host, int(port or DEFAULT_PORT), type=socket.SOCK_STREAM)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"--metrics {place!r}: no such host ({error})") from None
        found |= dict.fromkeys((str(to[0]), int(to[1])) for *_, to in known)
    return list(found)


def scrape_all(places: Iterable[Address]) -> list[Scrape]:
    """Of those that answer."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        return [found for found in pool.map(_scrape, places) if found is not None]


def _scrape(place: Address) -> Scrape | None:
    connection = http.client.HTTPConnection(*place, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        body = answer.read(_MAX_BYTES).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    address = f"{place[0]}:{place[1]}"
    name = answer.getheader("Rose-Worker") if answer.status == 200 else None
    if name is None:
        return None
    try:
        return _parse(body, address, name)
    except ValueError:
        return None  # cut off, or of something else


def _parse(text: str, address: str, worker: str) -> Scrape:
    """Raises: ValueError: these are no metrics."""
    scrape = Scrape(address, worker)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "rose_model_info":
                scrape.labels.update(sample.labels)
            if not sample.name.endswith("_bucket"):
                before = scrape.samples.get(sample.name, 0.0)
                scrape.samples[sample.name] = before + sample.value
    return scrape
