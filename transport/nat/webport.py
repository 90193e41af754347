"""Second listener of a reachable node on TCP 443, for networks that allow nothing else outbound."""

import trio

from ..defaults import HTTPS_PORT
from ..dial.endpoint import Endpoint
from ..errors import HostError
from .whereabouts import Whereabouts


class WebPort:
    """The listener on TCP 443 of one node."""

    def __init__(self, endpoint: Endpoint, whereabouts: Whereabouts) -> None:
        self.failure = ""
        """Why the port could not be bound; "" if it is bound or not needed."""
        self._endpoint = endpoint
        self._whereabouts = whereabouts
        self._scopes: list[trio.CancelScope] = []

    async def tend(self, listen: str, reachable: bool) -> None:
        """Listen while peers reach this node at its own public address. A port that its router
        forwards does not count, because it is a different port."""
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
