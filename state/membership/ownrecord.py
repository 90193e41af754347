"""This node's own member record: its versions, and when the latest one is sent. No I/O.

Changes of addresses only are sent rarely and together, because each one reaches all members in the
end. Such a change is slight while an address that peers know still leads here. It waits longer,
because a node gains and loses circuits and unconfirmed addresses for a minute after its start.
"""

from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any

from ...transport.address import Address
from ...transport.errors import TransportError
from ...transport.host.seam import Host
from ...transport.identity import Identity
from ...transport.networks import Nearness, nearness_of
from ...transport.rates import Rate, RateLimiter
from .. import defaults
from .record import MemberRecord, seal_record


class OwnMemberRecord:
    """The member record of the node with `identity`."""

    def __init__(self, host: Host, identity: Identity) -> None:
        self._host = host
        self._identity = identity
        self.record = MemberRecord(identity.peer, seq=self._later_than(0))
        """The latest version."""
        self.sealed = self._latest = seal_record(identity, self.record)
        """The version that peers have, signed."""
        self._pace = RateLimiter(Rate(*defaults.OWN_UPDATES), 0.0)
        self._addresses_pace = RateLimiter(Rate(*defaults.OWN_ADDRESSES), 0.0)
        self._spread = self.record.addresses  # the addresses that peers know
        self._spread_at = -inf  # when the latest version was sent over all links
        self._unspread = False  # a change waits to be sent
        self._gathered_at = -inf  # until when a change of addresses only has to wait
        self._urgent = False  # the waiting change affects routing
        self._reclaimed_at = -defaults.RECLAIM_PAUSE

    def renew(self, *, linked: bool, **changes: Any) -> None:
        """Replace fields of the record, and sign it with a later sequence number.

        `linked` says whether there is a link to send it over. If not, the first link gets it.
        Raises BadRecord if a value is out of bounds. Then the old record stays.
        """
        record = replace(self.record, seq=self._later_than(self.record.seq), **changes)
        self._latest = seal_record(self._identity, record)
        self.record = record
        if linked and not self._unspread:
            self._gathered_at = self._host.now() + defaults.ADDRESSES_GATHERED
        self._unspread = linked
        self._urgent |= linked and not changes.keys() <= {"addresses"}
        if not linked:
            self.sealed, self._spread = self._latest, record.addresses

    def _later_than(self, seq: int) -> int:
        """Return a sequence number that is later than `seq`.

        The number is taken from the wall clock, so that it is also later than those before a
        restart.
        """
        return max(seq + 1, int(self._host.wall() * 1000))

    def take(self, now: float) -> tuple[bytes, bool] | None:
        """Return the signed record to send over all links now, and whether it is urgent.

        It then counts as sent. Returns None if it has not changed, or if the change has to wait.
        """
        if not self._unspread or (now < self._waits_until() and not self._urgent):
            return None
        if not (self._pace if self._urgent else self._addresses_pace).take(now):
            return None
        urgent, self._unspread, self._urgent = self._urgent, False, False
        self.sealed, self._spread, self._spread_at = self._latest, self.record.addresses, now
        return self.sealed, urgent

    def next_at(self) -> float:
        """Return the time at which a waiting change may be sent. Infinity: there is none."""
        if not self._unspread:
            return inf
        if self._urgent:
            return self._pace.due
        return max(self._addresses_pace.due, self._waits_until())

    def _waits_until(self) -> float:
        """Return the time until which a change of addresses only waits for further changes."""
        if is_slight(self._spread, self.record.addresses):
            return max(self._gathered_at, self._spread_at + defaults.SLIGHT_S)
        return self._gathered_at

    def may_reclaim(self, now: float) -> bool:
        """Return whether the pause since the last reclaimed record has ended.

        Without a pause, two nodes with the same key, which is an error, would outbid each other all
        the time.
        """
        return now - self._reclaimed_at >= defaults.RECLAIM_PAUSE

    def reclaim(self, claimed: int, now: float) -> bool:
        """Raise the sequence number to that of a record of this node's key that came from a peer.

        Returns whether the record must be renewed.
        """
        if not self.record.seq <= claimed < defaults.MAX_SEQ - 2:
            return False
        self._reclaimed_at = now
        self.record = replace(self.record, seq=claimed)
        return True


def is_slight(before: tuple[str, ...], after: tuple[str, ...]) -> bool:
    """Return whether peers that know the addresses `before` need those of `after` only in time.

    That is so if one of the known addresses still leads here from any network. It is not so if the
    first public address without a relay, of IPv4 or of IPv6, is new: peers would use circuits for
    as long.
    """
    left = _public(before).items() & (now := _public(after)).items()
    return bool(left) and {kind for _, kind in left} >= set(now.values()) - {_CIRCUIT}


_CIRCUIT = "circuit"


def _public(addresses: tuple[str, ...]) -> dict[str, str]:
    """Return the addresses that lead here from any network, each with its kind."""
    found = {}
    for text in addresses:
        with suppress(TransportError):
            address = Address.parse(text)
            if nearness_of(address.host) is Nearness.PUBLIC:
                kind = "IPv6" if ":" in address.host else "IPv4"
                found[text] = kind if address.relay is None else _CIRCUIT
    return found
