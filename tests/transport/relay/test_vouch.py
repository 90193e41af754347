"""Tests of a relay's signed statement about the address of a peer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.transport.relay.vouch import Vouched, read_vouched

PUBLIC, PRIVATE, LOOPBACK = "8.8.8.8", "192.168.1.9", "127.0.0.1"


@pytest.mark.parametrize("voucher", [PUBLIC, PRIVATE, LOOPBACK, ""])
def test_a_public_address_is_anybodys_to_vouch_for(voucher: str) -> None:
    assert read_vouched(["9.9.9.9", 4001, 0], voucher) == Vouched("9.9.9.9", 4001, 0)
    assert read_vouched(["2600:0::1", 1, 65535], voucher) == Vouched("2600::1", 1, 65535)
    assert read_vouched(["::ffff:9.9.9.9", 1, 2], voucher) == Vouched("9.9.9.9", 1, 2)


@pytest.mark.parametrize("ip", ["192.168.1.1", "10.0.0.1", "172.16.0.1", "fd00::1", "100.64.0.1"])
def test_private_addresses_only_for_peers_seen_at_one(ip: str) -> None:
    assert read_vouched([ip, 1, 1], PUBLIC) is None
    assert read_vouched([ip, 1, 1], "") is None
    assert read_vouched([ip, 1, 1], "nonsense") is None
    assert read_vouched([ip, 1, 1], PRIVATE) == Vouched(ip, 1, 1)  # the twin


def test_loopback_only_for_peers_seen_there() -> None:
    for ip in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        assert read_vouched([ip, 1, 1], PUBLIC) is None
        assert read_vouched([ip, 1, 1], PRIVATE) is None
    assert read_vouched(["127.0.0.1", 1, 1], LOOPBACK) == Vouched("127.0.0.1", 1, 1)
    assert read_vouched(["::1", 1, 1], "::1") == Vouched("::1", 1, 1)


@pytest.mark.parametrize(
    "ip",
    [
        "169.254.169.254", "fe80::1", "fe80::1%eth0", "224.0.0.1", "ff02::1", "0.0.0.0", "::",
        "255.255.255.255", "240.0.0.1", "2002:7f00:1::", "2001:0:7f00:1::", "", "a.example",
        "1.2.3.4\n", "1.2.3", "9" * 10_000,
    ],
)  # fmt: skip
def test_unusable_addresses_are_refused(ip: str) -> None:
    for voucher in (PUBLIC, PRIVATE, LOOPBACK):
        assert read_vouched([ip, 1, 1], voucher) is None


@pytest.mark.parametrize(
    "value",
    [
        None, 7, "9.9.9.9", [], ["9.9.9.9"], ["9.9.9.9", 1], ["9.9.9.9", 1, 2, 3], [b"x", 1, 2],
        ["9.9.9.9", "1", 2], ["9.9.9.9", 1, None], ["9.9.9.9", True, 0], ["9.9.9.9", -1, 0],
        ["9.9.9.9", 65536, 0], ["9.9.9.9", 1 << 63, 0], ["9.9.9.9", 1.0, 0], {"ip": 1},
    ],
)  # fmt: skip
def test_odd_forms(value: object) -> None:
    assert read_vouched(value, LOOPBACK) is None


@given(st.recursive(st.none() | st.integers() | st.text() | st.binary(), st.lists))
def test_whatever_it_is(value: object) -> None:
    read_vouched(value, PUBLIC)


@given(st.ip_addresses(), st.ip_addresses())
def test_what_passes_is_as_far_as_its_voucher(ip: object, voucher: object) -> None:
    got = read_vouched([str(ip), 1, 2], str(voucher))
    if got is not None and read_vouched([str(ip), 1, 2], PUBLIC) is None:
        assert not voucher.is_global  # type: ignore[attr-defined]
