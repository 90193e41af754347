"""Addresses at which a relay sees its peers, which it tells to the other ends of circuits.

An address that a peer claims for itself proves nothing. One at which a third node sees it may be
probed (docs/spec/punch.md), so a relay's word is checked here: a lying relay may name the public
address of another host, but none in a network that only this node can reach.
"""

from typing import NamedTuple

from ..link.link import Link
from ..networks import nearness_at, nearness_of, plain_ip


class Vouched(NamedTuple):
    """An IP address in canonical form, and the TCP and UDP ports seen there, 0 if unknown.

    `other` is the address of the other IP version at which the peer is seen too, "" for none.
    """

    ip: str
    tcp: int = 0
    udp: int = 0
    other: str = ""


def seen_at(link: Link) -> Vouched:
    """Return where this node itself sees the other end of a link; no address if it is relayed.

    The result includes the last address of the other IP version if that path has ended.
    """
    now = link.status.seen
    places = {ip: ports for ip, ports in link.places.items() if ip not in now} | now if now else {}
    four = [ip for ip in places if ":" not in ip]
    six = [ip for ip in places if ":" in ip]
    if not places:
        return Vouched("")
    ip = (four or six)[-1]  # the latest, as an earlier one may be dead
    return Vouched(ip, *places[ip], six[-1] if four and six else "")


def is_relayed(link: Link) -> bool:
    """Whether a link's peer is seen at no address, because it comes through a relay itself."""
    return not link.status.seen


def read_vouched(value: object, voucher: str) -> Vouched | None:
    """Decode what a relay seen at the IP address `voucher` says; None if it must not be used."""
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
    """Return the address in canonical form, if it is no nearer to this node than its voucher."""
    nearness = nearness_of(ip)
    return None if nearness is None or nearness > nearness_at(voucher) else plain_ip(ip)
