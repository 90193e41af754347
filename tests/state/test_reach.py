"""No stranger's record makes this node dial its owner's machines."""

import pytest

from shoal.state.reach import Reach, dialable, reach_of, seen_at
from shoal.transport.identity import Identity

PEER = Identity.from_seed(b"a" * 32).peer
OTHER = Identity.from_seed(b"b" * 32).peer


@pytest.mark.parametrize(
    ("host", "reach"),
    [
        ("8.8.8.8", Reach.PUBLIC),
        ("2606:4700::1111", Reach.PUBLIC),
        ("::ffff:8.8.8.8", Reach.PUBLIC),
        ("10.1.2.3", Reach.PRIVATE),
        ("172.16.0.1", Reach.PRIVATE),
        ("192.168.1.1", Reach.PRIVATE),
        ("100.64.0.1", Reach.PRIVATE),
        ("fd00::1", Reach.PRIVATE),
        ("::ffff:192.168.1.1", Reach.PRIVATE),
        ("127.0.0.1", Reach.LOOPBACK),
        ("127.1.2.3", Reach.LOOPBACK),
        ("::1", Reach.LOOPBACK),
        ("::ffff:127.0.0.1", Reach.LOOPBACK),
        ("0.0.0.0", None),
        ("::", None),
        ("169.254.169.254", None),
        ("fe80::1", None),
        ("224.0.0.1", None),
        ("255.255.255.255", None),
        ("240.0.0.1", None),
        ("2002:7f00:1::", None),
        ("2001:0:7f00:1::", None),
        ("localhost", None),
        ("example.org", None),
    ],
)
def test_how_near_an_address_is(host: str, reach: Reach | None) -> None:
    assert reach_of(host) == reach


def test_an_unclear_link_counts_as_far() -> None:
    assert seen_at("fe80::1") == Reach.PUBLIC
    assert seen_at("127.0.0.1") == Reach.LOOPBACK


@pytest.mark.parametrize(
    ("reach", "hosts"),
    [
        (Reach.PUBLIC, ["8.8.8.8"]),
        (Reach.PRIVATE, ["8.8.8.8", "192.168.1.1"]),
        (Reach.LOOPBACK, ["8.8.8.8", "192.168.1.1", "127.0.0.1"]),
    ],
)
def test_an_address_counts_for_as_much_as_where_it_came_from(
    reach: Reach, hosts: list[str]
) -> None:
    told = ["8.8.8.8", "192.168.1.1", "127.0.0.1", "169.254.169.254"]
    addresses = tuple(f"/ip4/{host}/tcp/22" for host in told)
    found = dialable((*addresses, "/dns4/example.org/tcp/22", "nonsense"), PEER, reach)
    assert [address.host for address in found] == hosts
    assert {address.peer for address in found} == {PEER}


def test_an_address_with_another_name_is_not_dialled() -> None:
    assert dialable((f"/ip4/8.8.8.8/tcp/22/p2p/{OTHER}",), PEER, Reach.PUBLIC) == []
