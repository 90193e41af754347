"""Links that gateways make a stage establish with the neighbours in their chains."""

from collections.abc import Collection

from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ....transport.rates import Rate, Rates
from ...defaults import DIALS, DIALS_IN_ALL, LINKS_AHEAD
from ...errors import SessionError
from ..courier import Courier


class Meetings:
    """Dialer of a stage, with a rate for each gateway and one for all.

    A gateway names the neighbours of a stage. Without a limit, it could make many stages dial one
    member at once.
    """

    def __init__(self, host: Host, courier: Courier) -> None:
        self._host = host
        self._courier = courier
        self._dials = Rates(Rate(*DIALS), total=Rate(*DIALS_IN_ALL))
        self._ahead = Rates(Rate(*LINKS_AHEAD))

    async def meet(self, gateway: PeerId, peers: Collection[PeerId]) -> None:
        """Establish the links to `peers` that are missing, for a gateway, and mark the others as
        needed.

        A search for a direct path counts as a dial, but only dials are refused. Ignores failures.
        Raises SessionError `busy` if the gateway has made this node dial too often. This node's own
        gateway has no limit.
        """
        for peer in dict.fromkeys(peers):
            if self._courier.is_linked(peer):
                if self._courier.is_spare(peer) and self._may_dial(gateway):
                    self._courier.need(peer)
            elif self._may_dial(gateway):
                await self._courier.meet(peer)
            else:
                raise SessionError("busy", "this stage was asked to dial too many peers")

    def expect(self, peers: Collection[PeerId]) -> None:
        """Mark relayed links to members with adjacent layers as needed before a chain needs them:
        only a few, the nearest ones first. A chain over a relay would look slow, so none would be
        tried."""
        spare = filter(self._courier.is_spare, peers)
        for peer in sorted(spare, key=lambda each: (self._courier.round_trip(each) or 0.0, each)):
            if not self._ahead.take(self._courier.peer, self._host.now()):
                break
            self._courier.need(peer)

    def _may_dial(self, gateway: PeerId) -> bool:
        """Count a dial for a gateway. Return whether it may be made."""
        own = gateway == self._courier.peer
        return own or self._dials.take(gateway, self._host.now())
