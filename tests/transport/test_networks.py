"""Classification of IP addresses."""

from ipaddress import IPv4Address, IPv6Address
from random import Random

import pytest

from shoal.transport.bytestream import PathKind
from shoal.transport.defaults import NETWORKS_FOUR, NETWORKS_SIX, TARGETS_FOUR, TARGETS_SIX
from shoal.transport.networks import (
    THIS_MACHINE,
    Nearness,
    is_public,
    nearness_at,
    nearness_of,
    network,
    networks,
    owner,
    parse_ip,
    path_kind_to,
    plain_ip,
    region,
    targets,
)

NEVER = [
    "0.0.0.0", "0.1.2.3", "::", "169.254.169.254", "100.100.100.200", "fd00:ec2::254", "fe80::1",
    "fec0::1", "224.0.0.1", "ff02::1", "240.0.0.1", "255.255.255.255", "64:ff9b::1.2.3.4",
    "64:ff9b:1::1", "2001:0:7f00:1::", "2002:7f00:1::", "4000::1",
]  # fmt: skip
NO_ADDRESS = [
    "", "localhost", "example.org", "1.2.3", "01.2.3.4", "1.2.3.4\n", "٣.1.1.1", "2600::1%eth0",
    "9" * 10_000,
]  # fmt: skip


@pytest.mark.parametrize(
    ("ip", "nearness"),
    [
        ("8.8.8.8", Nearness.PUBLIC),
        ("2606:4700::1111", Nearness.PUBLIC),
        ("::ffff:8.8.8.8", Nearness.PUBLIC),
        ("10.1.2.3", Nearness.PRIVATE),
        ("172.16.0.1", Nearness.PRIVATE),
        ("192.168.1.1", Nearness.PRIVATE),
        ("100.64.0.1", Nearness.PRIVATE),
        ("fd00::1", Nearness.PRIVATE),
        ("::ffff:192.168.1.1", Nearness.PRIVATE),
        ("127.0.0.1", Nearness.LOOPBACK),
        ("127.1.2.3", Nearness.LOOPBACK),
        ("::1", Nearness.LOOPBACK),
        ("::ffff:127.0.0.1", Nearness.LOOPBACK),
    ],
)
def test_how_near_an_address_is(ip: str, nearness: Nearness) -> None:
    assert nearness_of(ip) is nearness_at(ip) is nearness
    assert nearness_of(f"{ip}%eth0") is None


@pytest.mark.parametrize("ip", [*NEVER, *NO_ADDRESS])
def test_forbidden_addresses_have_no_nearness(ip: str) -> None:
    assert nearness_of(ip) is None
    assert not is_public(ip)


def test_a_doubtful_address_counts_as_public() -> None:
    assert nearness_at("fe80::1") is nearness_at("nonsense") is Nearness.PUBLIC


@pytest.mark.parametrize("ip", ["8.8.8.8", "2600::1", "11.0.0.1"])
def test_public(ip: str) -> None:
    assert is_public(ip)


@pytest.mark.parametrize(
    "ip", ["10.0.0.1", "100.64.0.1", "127.0.0.1", "fc00::1", "::ffff:8.8.8.8", "2600:0::1"]
)
def test_not_public_or_not_in_canonical_spelling(ip: str) -> None:
    assert not is_public(ip)


@pytest.mark.parametrize(
    ("ip", "path_kind"),
    [
        ("127.0.0.1", PathKind.LOOPBACK),
        ("::1", PathKind.LOOPBACK),
        ("::ffff:127.0.0.1", PathKind.LOOPBACK),
        ("192.168.1.9", PathKind.LAN),
        ("169.254.7.7", PathKind.LAN),
        ("fe80::1", PathKind.LAN),
        ("100.64.0.1", PathKind.DIRECT),
        ("8.8.8.8", PathKind.DIRECT),
        ("0.0.0.0", PathKind.DIRECT),
        ("::", PathKind.DIRECT),
        ("example.org", PathKind.DIRECT),
    ],
)
def test_the_path_kind_of_an_address(ip: str, path_kind: PathKind) -> None:
    assert path_kind_to(ip) is path_kind


def test_one_spelling() -> None:
    assert plain_ip("2600:0:0::1") == "2600::1"
    assert plain_ip("::ffff:8.8.8.8") == "8.8.8.8" == str(parse_ip("::ffff:808:808"))


@pytest.mark.parametrize("text", NO_ADDRESS)
def test_invalid_addresses_are_none(text: str) -> None:
    assert parse_ip(text) is None and plain_ip(text) is None


@pytest.mark.parametrize(
    ("ip", "found"),
    [
        ("192.0.2.77", "192.0.2.0/24"),
        ("::ffff:192.0.2.77", "192.0.2.0/24"),
        ("2600:1:2:3:4::1", "2600:1:2:3::/64"),
        *((each, "unknown") for each in NO_ADDRESS),
    ],
)
def test_a_network(ip: str, found: str) -> None:
    assert network(ip, 24, 64) == found


def test_the_networks_that_may_be_one_owner_s() -> None:
    assert [each.name for each in networks("192.0.2.77")] == ["192.0.2.0/24", "192.0.0.0/16"]
    assert [each.name for each in networks("2600:1:2:345::1")] == [
        "2600:1:2:345::/64",
        "2600:1:2:300::/56",
        "2600:1:2::/48",
        "2600:1::/32",
    ]
    assert [each.share for each in networks("2600:1:2:345::1")] == [1, 2, 4, 8]
    assert networks("::ffff:192.0.2.77") == networks("192.0.2.77")
    assert networks("127.0.0.9") == networks("::1") == (THIS_MACHINE,)
    assert networks("nonsense") == networks("fe80::1%eth0") == networks("")


@pytest.mark.parametrize(
    "ip", [*NEVER, *NO_ADDRESS, "::1", "1::2:0:0:3", "::ffff:0:1", "\0", "\ud800"]
)
def test_both_parsers_agree(ip: str) -> None:
    _agree(ip)


def test_both_parsers_agree_on_random_addresses() -> None:
    chance = Random(1)
    for _ in range(300):
        _agree(str(IPv4Address(chance.getrandbits(32))))
        # Few bits set, so that runs of zeros are written in every way.
        six = chance.getrandbits(128) & chance.getrandbits(128) & chance.getrandbits(128)
        _agree(str(IPv6Address(six)))
        _agree(IPv6Address(six).exploded)


def _agree(ip: str) -> None:
    """Compare what `networks` and `targets` find with what `ipaddress` does."""
    for found, four, six in (
        (networks(ip), NETWORKS_FOUR, NETWORKS_SIX),
        (targets(ip), TARGETS_FOUR, TARGETS_SIX),
    ):
        parsed = parse_ip(ip)
        if parsed is None:
            assert found == (("unknown", 1),)
        elif found != (THIS_MACHINE,):
            levels = four if parsed.version == 4 else six
            assert found == tuple((network(ip, bits, bits), share) for bits, share in levels)
        else:
            assert parsed.is_loopback


def test_counting_a_new_source_costs_no_slow_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ipaddress` would take most of the CPU that a refused connection costs."""
    monkeypatch.delattr("shoal.transport.networks.ip_address")
    monkeypatch.delattr("shoal.transport.networks.ip_network")
    assert len(networks("11.22.33.44")) == 2 and len(networks("2600:1:2:3:44::")) == 4
    assert len(targets("11.22.33.44")) == 2 and len(targets("2600:1:2:3:44::")) == 3


def test_the_owner_of_an_address() -> None:
    assert owner("2600:1:2:3::1") == owner("2600:1:2:ff00::1") != owner("2600:1:3::1")
    assert owner("192.0.2.1") == owner("192.0.2.200") != owner("192.0.3.1")


def test_wider_and_narrower_networks() -> None:
    assert region("1.2.3.4") == region("1.2.250.4") == "1.2.0.0/16"
    assert region("2600:1:2::1") == "2600:1::/32"
    assert network("2001:db8:1:2::1", 24, 56) == network("2001:db8:1:ff::9", 24, 56)
    assert network("1.2.3.4", 32, 64) == "1.2.3.4/32" != network("1.2.3.5", 32, 64)
