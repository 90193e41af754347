"""Scopes of addresses, leases within bounds, what counts as the same place."""

from dataclasses import replace

import pytest

from shoal.transport.nat.portmap.mapping import PortMapping, Scope, lease_of, scope_of


@pytest.mark.parametrize(
    ("address", "scope"),
    [
        ("8.8.8.8", Scope.PUBLIC),
        ("203.0.113.77", Scope.PUBLIC),
        ("100.63.255.255", Scope.PUBLIC),
        ("100.64.0.1", Scope.CARRIER),
        ("100.127.255.255", Scope.CARRIER),
        ("100.128.0.0", Scope.PUBLIC),
        ("10.1.2.3", Scope.PRIVATE),
        ("172.31.0.1", Scope.PRIVATE),
        ("172.32.0.1", Scope.PUBLIC),
        ("192.168.0.1", Scope.PRIVATE),
        ("169.254.1.1", Scope.PRIVATE),
        ("0.0.0.0", Scope.NOWHERE),
        ("127.0.0.1", Scope.NOWHERE),
        ("239.1.1.1", Scope.NOWHERE),
        ("255.255.255.255", Scope.NOWHERE),
        ("2001:db8::1", Scope.NOWHERE),
        ("", Scope.NOWHERE),
        ("٣.1.1.1", Scope.NOWHERE),
        ("1.2.3.4\n", Scope.NOWHERE),
    ],
)
def test_scopes(address: str, scope: Scope) -> None:
    assert scope_of(address) is scope


def test_a_lease_is_believed_within_bounds() -> None:
    assert lease_of(600, 3600) == 600 and lease_of(2**32 - 1, 3600) == 3600
    assert lease_of(0, 3600) == 1


def test_a_renewal_is_the_same_place() -> None:
    mapping = PortMapping("203.0.113.5", 4001, 4001, "pcp", 10.0, "192.168.1.1")
    assert mapping.same_place(replace(mapping, expires=20.0))
    assert not mapping.same_place(replace(mapping, udp_port=0)) and not mapping.same_place(None)
    private = replace(mapping, address="10.0.0.1")
    assert mapping.scope is Scope.PUBLIC is not private.scope
