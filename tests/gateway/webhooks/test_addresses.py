"""To which addresses webhooks go."""

import socket
from ipaddress import ip_address
from typing import Any

import pytest

from rose_gateway.settings import networks_of
from rose_gateway.webhooks.addresses import AddressPolicy, AddressRefused, is_public


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1"),
        *("169.254.169.254", "100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1"),
        *("::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "fec0::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
        *("64:ff9b:1::1", "2001:db8::1", "::7f00:1", "2001:0:7f00:1::1"),
    ],
)
def test_what_is_not_of_the_public_internet_is_refused(address: str) -> None:
    assert not is_public(ip_address(address))
    assert not AddressPolicy().allows(ip_address(address), encrypted=True)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:4700::1", "64:ff9b::5db8:d822"])
def test_a_public_address_gets_https_only(address: str) -> None:
    assert AddressPolicy().allows(ip_address(address), encrypted=True)
    assert not AddressPolicy().allows(ip_address(address), encrypted=False)


def test_an_allowed_network_gets_both_and_no_other_network_does() -> None:
    policy = AddressPolicy(networks_of("10.0.0.0/8, fd00::/8"))
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1"):
        for encrypted in (True, False):
            assert policy.allows(ip_address(address), encrypted=encrypted)
    assert not policy.allows(ip_address("169.254.169.254"), encrypted=False)


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f000001", "[::1]"])
async def test_loopback_is_refused_however_it_is_written(host: str) -> None:
    with pytest.raises(AddressRefused, match="ROSE_GATEWAY_WEBHOOK_NETWORKS"):
        await AddressPolicy().resolve(host.strip("[]"), 443, encrypted=True)


async def test_only_the_good_addresses_of_a_name_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    def resolved(*_: Any, **__: Any) -> Any:
        addresses = ("10.0.0.1", "93.184.216.34")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, 443)) for one in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    # then
    assert await AddressPolicy().resolve("x.test", 443, encrypted=True) == ["93.184.216.34"]
    with pytest.raises(AddressRefused, match="use https"):
        await AddressPolicy().resolve("x.test", 80, encrypted=False)
