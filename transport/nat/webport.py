"""Second listener of a reachable node, on TCP port 443.

It serves peers in networks that allow no other outbound connections.
"""

import trio

from ..defaults import HTTPS_PORT
from ..dial.endpoint import Endpoint
from ..errors import HostError
from .whereabouts import Whereabouts


class WebPort:
    """The listener of one node on TCP port 443."""

    def __init__(self, endpoint: Endpoint, whereabouts: Whereabouts) -> None:
        self.failure = ""
        """Reason why the port could not be bound; "" if it is bound or not needed."""
        self._endpoint = endpoint
        self._whereabouts = whereabouts
        self._scopes: list[trio.CancelScope] = []

    async def tend(self, listen: str, reachable: bool) -> None:
        """Open the listener, or close it if `reachable` is False. Call this whenever either may be
        due.

        The listener opens only if peers reach this node at its own public address. A port that its
        router forwards does not count, because that is another port than 443. `listen` is the IP
        address that the node listens on.
        """
        if not reachable:
            self.failure = ""
            for scope in self._scopes:
                scope.cancel()
            self._scopes = []
        elif self._whereabouts.public_ipv4() and not self._whereabouts.everywhere():
            await self._listen(listen)

    async def _listen(self, listen: str) -> None:
        self.failure = ""
        for place in ("0.0.0.0", "::") if listen == "0.0.0.0" else (listen,):
            try:
                self._scopes.append(await self._endpoint.listen_too(place, HTTPS_PORT))
            except HostError as error:
                if ":" not in place:  # a machine need not have IPv6
                    self.failure = error.message
