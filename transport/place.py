"""How near an IP address is."""

from ipaddress import IPv6Address, ip_address

from .pipe import Way


def way_to(ip: str) -> Way:
    """The way by which a plain connection to an address goes; the unclear counts as far."""
    try:
        found = ip_address(ip)
    except ValueError:
        return Way.DIRECT
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_loopback:
        return Way.LOOPBACK
    return Way.LAN if found.is_private and not found.is_unspecified else Way.DIRECT
