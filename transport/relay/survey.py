"""Measurement of possible relays: whether they relay, and their round trips."""

from collections.abc import Awaitable, Callable, Sequence

import trio

from ..address import Address
from ..dial.endpoint import Endpoint
from ..errors import CallRefused, DialFailed, LinkClosed
from ..host.seam import Host
from ..link.link import Link
from .choice import KnownRelays, RelayCandidate
from .defaults import ANSWER_S, DIAL_S, GATHER_S
from .vouch import is_relayed


class Survey:
    """Measurer of candidates. Records failures in `choice`.

    `reach(address, timeout)` makes a direct path to a relay (see `RelayClient`).
    """

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        choice: KnownRelays,
        *,
        reach: Callable[[Address, float], Awaitable[Link]] | None,
    ) -> None:
        self.reach = reach or self._reach_by_tcp
        self._host = host
        self._endpoint = endpoint
        self._choice = choice

    async def measure(
        self,
        trying: Sequence[RelayCandidate],
        on_answer: Callable[[RelayCandidate], Awaitable[None]],
    ) -> list[RelayCandidate]:
        """Measure all candidates at the same time, and return those that have answered as relays.

        Once one has answered, the others get only `GATHER_S` more seconds, because a later one is
        far away. `on_answer` is called with each that answers, and may be cancelled.
        """
        answered: list[RelayCandidate] = []
        first, all_done = trio.Event(), trio.Event()
        left = len(trying)

        async def ask(candidate: RelayCandidate) -> None:
            nonlocal left
            if await self._ask(candidate):
                answered.append(candidate)
                first.set()
                await on_answer(candidate)
            left -= 1
            if not left:
                first.set()
                all_done.set()

        if trying:
            async with trio.open_nursery() as nursery:
                for candidate in trying:
                    self._endpoint.guard.start(nursery, candidate.peer, ask, candidate)
                await first.wait()
                with trio.move_on_after(GATHER_S):
                    await all_done.wait()
                nursery.cancel_scope.cancel()
        return answered

    async def link_at(self, address: Address, timeout: float) -> Link:
        """Return a direct link to the relay at an address. Dials if there is none.

        Raises DialFailed if that fails.
        """
        link = None if address.peer is None else self._endpoint.link(address.peer)
        if link is not None and link.connected and not is_relayed(link):
            await trio.lowlevel.checkpoint()
            return link
        return await self.reach(address, timeout)

    async def _ask(self, candidate: RelayCandidate) -> bool:
        """Measure a candidate's round trip. Return whether the candidate relays."""
        try:
            link = await self._link_to(candidate)
            began = self._host.now()
            await link.call("relay.info", timeout=ANSWER_S)
        except (DialFailed, CallRefused, LinkClosed) as error:
            self._choice.failed(candidate.peer, error.code, self._host.now())
            return False
        if is_relayed(link):
            self._choice.failed(candidate.peer, "relayed", self._host.now())
            return False
        candidate.rtt = self._host.now() - began
        return True

    async def _link_to(self, candidate: RelayCandidate) -> Link:
        """Return a direct link to a candidate by the first of its addresses that answers.

        Raises DialFailed if none does.
        """
        failure = DialFailed("unreachable", "no address is known")
        deadline = self._host.now() + DIAL_S
        for index, address in enumerate(list(candidate.addresses)):
            left = deadline - self._host.now()
            if left <= 0:  # this machine was suspended
                break
            try:
                return await self.link_at(address, left / (len(candidate.addresses) - index))
            except DialFailed as error:
                failure = error
        raise failure

    async def _reach_by_tcp(self, address: Address, timeout: float) -> Link:
        """Dial a TCP address. Raises DialFailed if that fails, or if the address is not TCP."""
        if address.transport != "tcp":
            raise DialFailed("no-udp", f"`{address}`: this node does not dial UDP")
        return await self._endpoint.reach(address, timeout=timeout)
