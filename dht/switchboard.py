"""What the exchange needs of the transport, and of who knows more holders."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..transport.calls import Handler, Reply
from ..transport.frame import Bytes, Priority
from ..transport.identity import PeerId

Peers = Callable[[], Sequence[PeerId]]
"""Who may be asked now; called again and again, so peers may come and go."""


class Caller(Protocol):
    """What is needed of a `Link`."""

    @property
    def peer(self) -> PeerId: ...

    @property
    def quiet(self) -> bool: ...

    async def call(
        self,
        method: str,
        header: Mapping[str, Any] = ...,
        payload: Bytes = ...,
        *,
        priority: Priority = ...,
        timeout: float,
    ) -> Reply: ...

    def post(
        self,
        method: str,
        header: Mapping[str, Any] = ...,
        payload: Bytes = ...,
        *,
        priority: Priority,
    ) -> None: ...


class Switchboard(Protocol):
    """What is needed of an `Endpoint`."""

    def handle(self, method: str, handler: Handler) -> None: ...
    def link(self, peer: PeerId) -> Caller | None: ...
    def on_link_quiet(self, callback: Callable[[Any], None]) -> None: ...
    def on_link_back(self, callback: Callable[[Any], None]) -> None: ...


async def _nobody(_root: str) -> Sequence[PeerId]:
    return ()


async def _no_way(_peer: PeerId) -> object:
    return None


def _silent(_root: str, _size: int, _chunks: int, _ranges: bytes | None) -> None:
    """Nobody is told."""


def _forgotten(_root: str) -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True)
class Swarm:
    """What says who else may hold something, brings a link to them, and tells them of us.

    `providers(root)` names peers beyond those that are linked; `connect(peer)` dials one of them
    and raises TransportError where it cannot. `announce(root, size, chunks, ranges)` is called
    whenever what is held here of a root has changed much: its bytes, its chunks, and the runs of
    indexes that are here (packed, `ranges.py`; None: all). `withdraw(root)`: nothing is.
    """

    providers: Callable[[str], Awaitable[Sequence[PeerId]]] = _nobody
    connect: Callable[[PeerId], Awaitable[object]] = _no_way
    announce: Callable[[str, int, int, bytes | None], None] = _silent
    withdraw: Callable[[str], None] = _forgotten
