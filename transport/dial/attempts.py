"""All connection attempts of a node, and all searches for a new path of a link that has no path
left.

Each peer has at most one attempt at a time, which all tasks that need the link share.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from .. import defaults
from ..address import Address
from ..host.seam import Host
from ..identity import PeerId
from ..link.link import Link
from ..peertasks import PeerTasks
from .attempt import AddressAttempt, ConnectionAttempt
from .endpoint import Endpoint
from .rescue import pace, times
from .rounds import RetryRounds

AddressBook = Callable[[PeerId], Sequence[Address]]
"""Returns the addresses of a peer that the peer has stated and that this node trusts."""


class AttemptPlan(Protocol):
    """Part of the strategies' interface that connection attempts use."""

    book: AddressBook

    def attempts(
        self, peer: PeerId, addresses: Sequence[Address], own: bool
    ) -> list[AddressAttempt]:
        """Return the addresses to try, and when. If `own`, include circuits through this node's
        relays."""
        ...

    async def attempt(self, attempt: AddressAttempt) -> Link:
        """Dial one address by its strategy. Raises DialFailed if that fails."""
        ...


class ConnectionAttempts:
    """Runner of connection attempts. While the node does not run, each attempt ends at once."""

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        plan: AttemptPlan,
        tasks: PeerTasks,
    ) -> None:
        self._host = host
        self._endpoint = endpoint
        self._plan = plan
        self._tasks = tasks
        self._running: dict[PeerId, ConnectionAttempt] = {}
        self._searches: dict[PeerId, RetryRounds[None]] = {}  # searches, by the peer of the link

    def to(self, peer: PeerId, addresses: Sequence[Address], timeout: float) -> ConnectionAttempt:
        """Return the connection attempt to a peer that is under way, or start one.

        A new attempt lasts at most `timeout` seconds.
        """
        attempt = self._running.get(peer)
        if attempt is not None and not attempt.over and not attempt.spent:
            return attempt
        attempt = self._running[peer] = ConnectionAttempt(peer, self._endpoint)
        if not self._tasks.start(peer, self._run, attempt, addresses, timeout):
            attempt.finish()
        return attempt

    async def _run(
        self, attempt: ConnectionAttempt, addresses: Sequence[Address], timeout: float
    ) -> None:
        """Run a connection attempt to its end, and remove it."""
        attempts = self._plan.attempts(attempt.peer, addresses, True)
        try:
            with trio.move_on_after(timeout):
                await attempt.run(attempts, self._plan.attempt)
        finally:
            attempt.finish()
            if self._running.get(attempt.peer) is attempt:
                del self._running[attempt.peer]

    async def fetch(self, peer: PeerId) -> None:
        """Dial a peer, as a relay, because another node wants to reach the peer through this node.

        Circuits through this node's own relays are left out, because those relays would dial the
        peer in turn. Returns once there is a direct path to the peer, or when all dials have failed
        and there is no link.
        """
        attempts = self._plan.attempts(peer, self._plan.book(peer), False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                ConnectionAttempt(peer, self._endpoint).run, attempts, self._plan.attempt
            )
            while nursery.child_tasks or self._endpoint.link(peer) is not None:
                link = self._endpoint.link(peer)
                if link is not None and link.connected and link.seen:
                    break
                await trio.sleep(defaults.FETCH_LOOK_S)
            nursery.cancel_scope.cancel()

    async def find(self, link: Link) -> None:
        """Search for a new path of a link that has lost all its paths, until cancelled."""
        rounds: RetryRounds[None] = RetryRounds(
            self._host,
            pause=defaults.FIND_S,
            every=pace(self._host),
            times=lambda: times(link, len(self._searches)),
        )
        self._searches[link.peer] = rounds
        try:
            await rounds.run(lambda: self._look_once(link.peer))
        finally:
            if self._searches.get(link.peer) is rounds:
                del self._searches[link.peer]

    async def _look_once(self, peer: PeerId) -> None:
        """Try the peer's addresses once."""
        with trio.move_on_after(defaults.ATTEMPT_S):
            attempts = self._plan.attempts(peer, self._plan.book(peer), True)
            await ConnectionAttempt(peer, self._endpoint).run(attempts, self._plan.attempt)

    def found(self, peer: PeerId) -> None:
        """Report that a path to `peer` was found. If one of the searches was for this peer, repeat
        all searches at once.

        The network is most likely back then. A path to any other peer does not show that: a node
        that is cut off from half of the swarm makes new links to the other half all the time.
        """
        if peer in self._searches:
            self.search_again()

    def search_again(self) -> None:
        """Repeat all searches for a path at once. Call this when the network may be back."""
        self._endpoint.rescue.wake()
        for search in self._searches.values():
            search.wake()
