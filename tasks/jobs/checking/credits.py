"""Credits: what each user has given, as far as this node can rely on it. No I/O.

The only source of credit is work that this node has checked itself. Members publish how much work
they have checked of others. A receipt is paid out of the credit of its author at this node, up
to half of it. So credit is passed on and never made: identities that vouch for each other have
together what independent nodes have recomputed of them, however many they are.
"""

from collections.abc import Mapping

from ....transport.identity import PeerId

Checked = Mapping[PeerId, float]
"""Seconds of work by the peer that has done it."""
_PASSED = 0.5  # part of a member's credit that it may pass on, at most


def credits_of(own: Checked, vouched: Mapping[PeerId, Checked]) -> dict[PeerId, float]:
    """Return the credit of each user in seconds of work.

    `own` is what this node has checked. `vouched` is what each member says that it has checked.
    """
    found = dict(own)
    for voucher, checked in vouched.items():
        total = sum(checked.values()) - checked.get(voucher, 0.0)
        passed = min(total, _PASSED * own.get(voucher, 0.0))
        if passed <= 0:
            continue
        found[voucher] -= passed
        for peer, seconds in checked.items():
            if peer != voucher:
                found[peer] = found.get(peer, 0.0) + passed * seconds / total
    return found
