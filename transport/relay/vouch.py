"""Addresses at which a relay sees a peer, which the relay tells to the other ends of circuits.

A peer's own claim about its address proves nothing. If a third node sees the peer at an address,
others may send there (docs/spec/punch.md). The third node is called the voucher here. Because a
relay may lie, its statements are checked: it may name the public address of any host, but no
address in a network that only this node can reach.
"""

from typing import NamedTuple

from ..link.link import Link
from ..networks import nearness_at, nearness_of, plain_ip


class Vouched(NamedTuple):
    """An IP address in canonical form, with the TCP and the UDP port seen there (0 if unknown).

    `other` is an address of the other IP version at which the peer is seen as well; "" if there is
    none.
    """

    ip: str
    tcp: int = 0
    udp: int = 0
    other: str = ""


def seen_at(link: Link) -> Vouched:
    """Return the address at which this node itself sees the peer of a link. Its `ip` is "" if the
    link is relayed.

    The result includes the last address of the other IP version, even if that path has ended.
    """
    now = link.seen
    places = {ip: ports for ip, ports in link.places.items() if ip not in now} | now if now else {}
    four = [ip for ip in places if ":" not in ip]
    six = [ip for ip in places if ":" in ip]
    if not places:
        return Vouched("")
    ip = (four or six)[-1]  # the latest, because an earlier one may be dead
    return Vouched(ip, *places[ip], six[-1] if four and six else "")


def is_relayed(link: Link) -> bool:
    """Return whether a link has no direct path, so that its peer is seen at no address."""
    return not link.seen


def read_vouched(value: object, voucher: str) -> Vouched | None:
    """Decode what a relay states. Return None if it is malformed or must not be used.

    `voucher` is the IP address at which this node sees the relay.
    """
    if not isinstance(value, list) or len(value) not in (3, 4):
        return None
    ip, tcp, udp, other = (*value, "")[:4]
    if not isinstance(ip, str) or not all(
        type(port) is int and 0 <= port <= 65535 for port in (tcp, udp)
    ):
        return None
    found = _believed(ip, voucher)
    if found is None or not isinstance(other, str):
        return None
    return Vouched(found, tcp, udp, _believed(other, voucher) or "")


def _believed(ip: str, voucher: str) -> str | None:
    """Return `ip` in canonical form, or None if the voucher's statement about it is not trusted: if
    the address must not be dialled, or is nearer to this node than the voucher's own address."""
    nearness = nearness_of(ip)
    return None if nearness is None or nearness > nearness_at(voucher) else plain_ip(ip)
