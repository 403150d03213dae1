"""ROSE_REDIS_URL in all its forms, and what its errors must not say."""

import pytest

from rose.errors import ConfigurationError
from rose.transport.urls import Kind, parse_address
from rose_producer import Client


@pytest.mark.parametrize(
    ("url", "kind", "nodes", "options"),
    [
        ("redis://h:1/2", Kind.SINGLE, (), {"db": 2}),
        ("rediss://u:p%2Fw@h", Kind.SINGLE, (), {"username": "u", "password": "p/w", "ssl": True}),
        ("unix:///run/redis.sock", Kind.SINGLE, (), {"path": "/run/redis.sock"}),
        ("redis+cluster://a:1,b,[::1]:2", Kind.CLUSTER, (("a", 1), ("b", 6379), ("::1", 2)), {}),
        ("redis+cluster://a:1/0", Kind.CLUSTER, (("a", 1),), {}),
        (
            "rediss+cluster://:p%40w@a:1,b:2?ssl_cert_reqs=none",
            *(Kind.CLUSTER, (("a", 1), ("b", 2))),
            {"password": "p@w", "ssl": True, "ssl_cert_reqs": "none"},
        ),
        ("redis+sentinel://a:1,b/primary", Kind.SENTINEL, (("a", 1), ("b", 26379)), {"db": 0}),
        (
            "redis+sentinel://u:p@a/primary/3",
            *(Kind.SENTINEL, (("a", 26379),)),
            {"username": "u", "password": "p", "db": 3},
        ),
    ],
)
def test_a_url_says_where_and_how(
    url: str, kind: Kind, nodes: object, options: dict[str, object]
) -> None:
    address = parse_address(url)
    assert (address.kind, address.nodes) == (kind, nodes)
    assert {**address.options} == options


def test_sentinels_have_a_service_and_may_have_users_of_their_own() -> None:
    # when
    address = parse_address(
        "rediss+sentinel://u:p@a/my%20primary?sentinel_username=s&sentinel_password=t"
        "&ssl_ca_certs=ca.pem"
    )
    # then
    assert address.service == "my primary"
    tls = {"ssl": True, "ssl_ca_certs": "ca.pem"}
    assert address.options == {"username": "u", "password": "p", "db": 0, **tls}
    assert address.sentinel == {"username": "s", "password": "t", **tls}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://u:hunter2@h", "must begin with"),
        ("hunter2", "must begin with"),
        ("redis+magic://u:hunter2@h", "must begin with"),
        ("redis+unix://u:hunter2@h", "must begin with"),
        ("redis://u:hunter2/x@h", "cannot be read"),
        ("redis://u:hunter2@h:port", "cannot be read"),
        ("redis://u:hunter2@h?socket_timeout=hunter2", "cannot be read"),
        ("redis://u:p@h/hunter2", "number of a database"),
        ("redis://u:hunter2@h/1/2", "number of a database"),
        ("redis+cluster://u:hunter2/@a:1,b:2", "cannot be read"),
        ("redis+cluster://u:hunter2@a:1,,b:2", "cannot be read"),
        ("redis+cluster://u:hunter2@a:1/3", "other database than 0"),
        ("redis+sentinel://u:hunter2@a:1", "name the service"),
        ("redis+sentinel://u:hunter2@a:1/primary/x", "cannot be read"),
    ],
)
def test_a_wrong_url_is_refused_without_a_word_of_it(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        Client(redis_url=url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_address_does_not_show_its_secrets() -> None:
    for url in (
        "redis://u:hunter2@h",
        "redis+cluster://u:hunter2@h",
        "redis+sentinel://u:hunter2@h/s",
    ):
        assert "hunter2" not in repr(parse_address(url))
