"""Relayed links: dials and accepts circuits through the relays of this project and of libp2p."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import trio

from .. import defaults
from ..address import Address
from ..bytestream import PathKind
from ..dial.endpoint import Endpoint
from ..errors import DialFailed
from ..identity import PeerId
from ..libp2p.client import CircuitClient
from ..libp2p.muxstream import MuxStream
from ..link.link import Link
from ..nat.knowledge import NodeKnowledge
from ..peertasks import PeerTasks
from ..relay.circuit import CircuitByteStream
from ..relay.client import RelayClient
from ..relay.vouch import Vouched


@dataclass(slots=True, eq=False)
class _Opening:
    """The opening of one circuit to a peer through one relay, shared by all tasks that dial it.

    `waiting` counts these tasks. `begun` is False while other openings at the same relay must end
    first. `result` is None until the opening has ended.
    """

    done: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    waiting: int = 0
    begun: bool = False
    result: Link | DialFailed | None = None


class Improves(Protocol):
    """Part of the dialer's interface that circuits use."""

    async def link_relay(self, relay: Address, others: Sequence[Address]) -> None:
        """Make a link to a relay by any of its addresses. Raises DialFailed if none works."""
        ...

    def improve(self, link: Link, at_once: bool) -> None:
        """Start to look for a direct path of a relayed link, at once or after some seconds."""
        ...


class Circuits:
    """Dialer and acceptor of one node's circuits.

    `relays` dials through relays of this project, and `foreign` through relays of libp2p. Only a
    few circuits may be opening at the same time through one relay. An opening that has begun
    continues even if all tasks that wanted it have given up, unless another path carries the link
    by then. The reason is that relays have little capacity, and that an abandoned handshake wastes
    it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        relays: RelayClient,
        foreign: CircuitClient,
        knowledge: NodeKnowledge,
        links: Improves,
        tasks: PeerTasks,
    ) -> None:
        self._endpoint = endpoint
        self._relays = relays
        self._foreign = foreign
        self._knowledge = knowledge
        self._links = links
        self._tasks = tasks
        self._openings: dict[tuple[PeerId | None, PeerId], _Opening] = {}
        self._turns: dict[PeerId | None, trio.Semaphore] = {}

    async def dial(self, relay: Address, peer: PeerId, others: Sequence[Address] = ()) -> Link:
        """Return a link to a peer through a relay of either kind.

        `others` are further addresses of the relay. Raises DialFailed if no circuit can be opened.
        """
        if not self._tasks.running:
            raise DialFailed("not-running", "the node is not running")
        key = relay.peer, peer
        opening = self._openings.get(key)
        if opening is None:
            opening = self._openings[key] = _Opening()
            self._tasks.start(peer, self._run, opening, relay, peer, others)
        opening.waiting += 1
        try:
            await opening.done.wait()
        finally:
            opening.waiting -= 1
            link = self._endpoint.link(peer)
            carried = link is not None and link.connected
            if not opening.waiting and (carried or not opening.begun):
                opening.scope.cancel()
        if isinstance(opening.result, Link):
            return opening.result
        if opening.result is not None:
            raise opening.result.copy()
        raise DialFailed("closed", f"the dial to `{peer}` was cancelled")

    async def _run(
        self, opening: _Opening, relay: Address, peer: PeerId, others: Sequence[Address]
    ) -> None:
        """Wait for a turn at the relay, open the circuit, and store the result."""
        turns = self._turns.setdefault(relay.peer, trio.Semaphore(defaults.OPENINGS_PER_RELAY))
        try:
            with opening.scope:
                async with turns:
                    opening.begun = True
                    opening.result = await self._dial(relay, peer, others)
        except DialFailed as error:
            opening.result = error.copy()
        finally:
            del self._openings[relay.peer, peer]
            if not any(of == relay.peer for of, _ in self._openings):
                self._turns.pop(relay.peer, None)
            opening.done.set()

    async def _dial(self, relay: Address, peer: PeerId, others: Sequence[Address]) -> Link:
        """Open a circuit through a relay of either kind, and return the link over it."""
        try:
            await self._links.link_relay(relay, others)
            byte_stream = await self._relays.dial(relay, peer, timeout=defaults.ATTEMPT_S)
        except DialFailed as error:
            if error.code not in ("tls-failed", "unreachable"):
                raise
            return await self._dial_foreign(relay, peer)
        name = f"{peer} through {relay.peer}"
        try:
            with trio.fail_after(defaults.ATTEMPT_S):
                link = await self._endpoint.join(
                    byte_stream, PathKind.RELAYED, expect=peer, server=False, name=name
                )
        except DialFailed as error:
            if byte_stream.failure is not None:  # the code of the relay says more
                raise DialFailed(byte_stream.failure, f"`{name}`: {byte_stream.failure}") from None
            raise error from None
        except trio.TooSlowError:
            raise DialFailed("timeout", f"`{name}` did not answer") from None
        self._knowledge.vouch(peer, byte_stream.seen, relay.peer)
        self._links.improve(link, True)
        return link

    async def _dial_foreign(self, relay: Address, peer: PeerId) -> Link:
        """Open a circuit through a relay that does not speak this project's protocol, because it
        may be a libp2p relay."""
        with trio.move_on_after(defaults.ATTEMPT_S):
            with self._endpoint.aim.at(relay):
                byte_stream = await self._foreign.dial(relay.through(peer))
            link = await self._endpoint.join(
                byte_stream,
                PathKind.RELAYED,
                expect=peer,
                server=False,
                name=f"{peer} through {relay.peer}",
            )
            self._links.improve(link, True)
            return link
        raise DialFailed("timeout", f"`{peer}` through `{relay}` did not answer")

    async def keep(self, relay: Address) -> None:
        """Hold a reservation at a libp2p relay, and request it again when it is lost, until
        cancelled.

        No request is made while peers reach this node directly.
        """
        while True:
            held = any(each.relay == relay for each in self._foreign.addresses())
            if not held and not self._relays.reachable:
                guard = self._endpoint.guard.around(str(relay))
                with guard, suppress(DialFailed), trio.move_on_after(defaults.ATTEMPT_S):
                    await self._foreign.reserve(relay)
            await trio.sleep(defaults.FOREIGN_S)

    async def take(
        self, byte_stream: CircuitByteStream, source: PeerId, relay: PeerId, seen: Vouched | None
    ) -> None:
        """Accept a circuit through a relay of this project, and make it a path of the link to its
        source.

        `seen` is the address at which the relay sees the source.
        """
        with suppress(DialFailed), trio.move_on_after(defaults.HANDSHAKE_S):
            link = await self._endpoint.join(
                byte_stream, PathKind.RELAYED, expect=source, server=True
            )
            self._knowledge.vouch(source, seen, relay)
            self._links.improve(link, False)

    async def take_foreign(self, byte_stream: MuxStream) -> None:
        """Accept a circuit through a libp2p relay. What that relay says about the source is not
        trusted."""
        with suppress(DialFailed), trio.move_on_after(defaults.HANDSHAKE_S):
            link = await self._endpoint.join(
                byte_stream, PathKind.RELAYED, expect=None, server=True
            )
            self._links.improve(link, False)
