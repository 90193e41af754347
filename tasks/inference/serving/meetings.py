"""Links that gateways make a stage establish with the neighbours in their chains."""

from collections.abc import Collection

from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ....transport.rates import Rate, Rates
from ...defaults import DIALS, DIALS_IN_ALL
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

    async def meet(self, gateway: PeerId, peers: Collection[PeerId]) -> None:
        """Establish the links to `peers` that are missing, for a gateway.

        Ignores failures. Raises SessionError `busy` if the gateway has made this node dial too
        often. This node's own gateway has no limit.
        """
        for peer in dict.fromkeys(peers):
            if self._courier.is_linked(peer):
                continue
            own = gateway == self._courier.peer
            if not own and not self._dials.take(gateway, self._host.now()):
                raise SessionError("busy", "this stage was asked to dial too many peers")
            await self._courier.meet(peer)
