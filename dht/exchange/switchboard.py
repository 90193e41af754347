"""Interfaces through which the exchange uses the transport and the DHT."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...transport.identity import PeerId
from ...transport.lane.frame import Bytes, Priority
from ...transport.link.calls import Handler, Reply
from ...transport.link.link import Link

Peers = Callable[[], Sequence[PeerId]]
"""Returns the peers that may be asked now. It is called repeatedly, because peers come and go."""


class Caller(Protocol):
    """The part of a `Link` that the exchange uses."""

    @property
    def peer(self) -> PeerId: ...

    @property
    def quiet(self) -> bool: ...

    async def call(
        self,
        method: str,
        header: Mapping[str, object] = ...,
        payload: Bytes = ...,
        *,
        priority: Priority = ...,
        timeout: float,
    ) -> Reply: ...

    def post(
        self,
        method: str,
        header: Mapping[str, object] = ...,
        payload: Bytes = ...,
        *,
        priority: Priority,
    ) -> None: ...


class Switchboard(Protocol):
    """The part of an `Endpoint` that the exchange uses."""

    def handle(self, method: str, handler: Handler) -> None: ...
    def link(self, peer: PeerId) -> Caller | None: ...
    def on_link_quiet(self, callback: Callable[[Link], None]) -> None: ...
    def on_link_back(self, callback: Callable[[Link], None]) -> None: ...


async def _no_providers(_root: str) -> Sequence[PeerId]:
    """Return no providers. This is the default `Swarm.providers`."""
    return ()


async def _no_dial(_peer: PeerId) -> object:
    """Do nothing. This is the default `Swarm.connect`."""
    return None


def _no_announcement(_root: str, _size: int, _chunks: int, _ranges: bytes | None) -> None:
    """Do nothing. This is the default `Swarm.announce`."""


def _no_withdrawal(_root: str) -> None:
    """Do nothing. This is the default `Swarm.withdraw`."""


def _no_report(_peer: PeerId, _digest: str) -> None:
    """Do nothing. This is the default `Swarm.on_liar`."""


@dataclass(frozen=True, slots=True)
class Swarm:
    """Functions that find providers, dial them, and announce this node as a provider.

    `providers(root)` returns providers, which need not be linked. `connect(peer)` dials one of them
    and raises TransportError if the dial fails. `announce(root, size, chunks, ranges)` is called
    when the number of chunks stored here has changed much. `size` and `chunks` describe the whole
    content, in bytes and chunks. `ranges` are the stored chunks, encoded by `pack_ranges`
    (`ranges.py`), or None if all are stored. `withdraw(root)` is called when none is stored any
    more. `on_liar(peer, digest)` is called when a peer has sent bytes that do not match the digest.
    """

    providers: Callable[[str], Awaitable[Sequence[PeerId]]] = _no_providers
    connect: Callable[[PeerId], Awaitable[object]] = _no_dial
    announce: Callable[[str, int, int, bytes | None], None] = _no_announcement
    withdraw: Callable[[str], None] = _no_withdrawal
    on_liar: Callable[[PeerId, str], None] = _no_report
