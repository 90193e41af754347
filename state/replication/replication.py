"""Replication of feeds over links: runs the protocol of `exchange.py` in trio tasks.

The node that dialled a lasting link compares feeds at once. After that, each node compares with a
random peer in every round. One loop starts news, pulls and comparisons. Only one task at a time
adds entries to the replica, and it lets other tasks run between two entries. Brief links are not
used. Wire format: docs/spec/state.md.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress

import trio

from ...transport.defaults import HASTE_S, PATIENCE_S
from ...transport.dial.endpoint import Endpoint
from ...transport.errors import TransportError
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.lane.frame import Priority
from ...transport.link.calls import Answer, Call, Handler, Refusal, Reply
from ...transport.link.link import Link
from .. import defaults
from ..errors import StateError
from ..feeds.entry import Entry
from .exchange import FeedExchange
from .gossip import DIGEST, HAVE, HEADS, NEWS, PULL, Unanswered
from .replica import Admit, Replica
from .wanted import Pull


class Replication:
    """Replication of feeds at one node.

    Calls are answered from the moment this object is created. `run` does everything else.
    """

    def __init__(self, host: Host, endpoint: Endpoint, replica: Replica) -> None:
        self.replica = replica
        self.exchange = FeedExchange(replica, self, self._draw)
        self._host = host
        self._endpoint = endpoint
        self._lock = trio.Lock()
        self._news = trio.Event()
        self._links: dict[PeerId, Link] = {}  # links that feeds are exchanged over
        self._fresh: list[PeerId] = []  # to compare with at once
        self._changes: list[tuple[PeerId, bool]] = []  # links gained and lost
        endpoint.handle(NEWS, self._on_news)
        endpoint.handle(PULL, self._give)
        for method in (DIGEST, HEADS, HAVE):
            endpoint.handle(method, self._answering(method))
        endpoint.on_link(self._link_up)
        endpoint.on_link_lasting(self._begin)
        endpoint.on_link_lost(self._link_lost)

    async def write(self, entries: Sequence[Entry], admit: Admit | None = None) -> None:
        """Write entries of this node's own feeds, as `Replica.write` does.

        The entries are in the archive when this returns. Peers get news of them soon.
        """
        await self.exchange.write(entries, admit)
        self.wake()

    def wake(self) -> None:
        """Wake the loop, because there may be work."""
        self._news.set()
        self._news = trio.Event()

    # The interface `ReplicationPeers`, which the exchange uses.

    def now(self) -> float:
        return self._host.now()

    def post(self, peer: PeerId, method: str, payload: bytes, *, later: bool = False) -> None:
        link = self._links.get(peer)
        if link is not None:
            with suppress(TransportError):  # the link has just ended; the next link compares again
                link.post(method, payload=payload, priority=Priority.CONTROL, later=later)

    async def call(self, peer: PeerId, method: str, payload: bytes) -> bytes:
        link = self._links.get(peer)
        if link is None or link.quiet:
            raise Unanswered
        pull = method == PULL
        try:
            reply = await link.call(
                method,
                payload=payload,
                priority=Priority.BULK if pull else Priority.CONTROL,
                timeout=defaults.FEED_PULL_TIMEOUT if pull else defaults.CALL_TIMEOUT,
                within=HASTE_S if pull else PATIENCE_S,
            )
        except TransportError:
            raise Unanswered from None
        return bytes(reply.payload)

    def blame(self, peer: PeerId, error: StateError) -> None:
        link = self._links.get(peer)
        if link is not None:
            link.close(error.code, error.message)

    async def pause(self) -> None:
        await trio.lowlevel.checkpoint()

    def turn(self) -> AbstractAsyncContextManager[object]:
        return self._lock

    def _draw(self, below: int) -> int:
        return int.from_bytes(self._host.entropy(8)) % below

    # Links.

    def _link_up(self, link: Link) -> None:
        if link.identities.dialled and not link.brief:
            self._begin(link)

    def _begin(self, link: Link) -> None:
        """Start to exchange feeds over a link, unless that has begun already."""
        if not link.alive or self._links.get(link.peer) is link:
            return
        fresh = link.peer not in self._links
        self._links[link.peer] = link
        if fresh:
            self._changes.append((link.peer, True))
        self.exchange.link_up(link.peer)
        if link.identities.dialled:
            self._fresh.append(link.peer)
        self.wake()

    def _link_lost(self, link: Link, code: str) -> None:
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            self.exchange.link_lost(link.peer)
            self._changes.append((link.peer, False))
            self.wake()

    # Calls from peers.

    def _on_news(self, call: Call) -> Answer:
        link = self._endpoint.link(call.peer)
        if link is not None:
            self._begin(link)
            self.exchange.heard(call.peer, bytes(call.payload))
            self.wake()
        return Reply()

    def _answering(self, method: str) -> Handler:
        answered = self.exchange.answer_at_once

        def answer(call: Call) -> Answer:
            link = self._endpoint.link(call.peer)
            if link is None:
                return _NO_LINK
            self._begin(link)
            try:
                payload = answered(call.peer, method, bytes(call.payload))
                return Reply(payload=payload, within=PATIENCE_S)
            except StateError as error:
                return self._refused(call.peer, error)

        return answer

    async def _give(self, call: Call) -> Answer:
        link = self._endpoint.link(call.peer)
        if link is None:
            return _NO_LINK
        self._begin(link)
        try:
            return Reply(payload=await self.exchange.give(call.peer, bytes(call.payload)))
        except StateError as error:
            return self._refused(call.peer, error)
        except trio.ClosedResourceError:  # the store was closed before the links
            return Refusal("ended", "this node is ending")

    def _refused(self, peer: PeerId, error: StateError) -> Refusal:
        if error.code == "bad-message":
            self.blame(peer, error)
        return Refusal(error.code, error.message)

    # Running.

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send news, compare and pull, until cancelled."""
        async with trio.open_nursery() as nursery:
            guard = self._endpoint.guard
            guard.start_repeated(nursery, "authors to store", self._refill)
            task_status.started()
            await guard.repeat("feeds to exchange", self._exchange, nursery)

    async def _exchange(self, nursery: trio.Nursery) -> None:
        while True:
            news = self._news
            await self._account_links()
            self.exchange.tell()
            for pull in self.exchange.next_pulls():
                self._endpoint.guard.start(nursery, pull.peer, self._pull, pull)
            fresh, self._fresh = self._fresh, []
            some = [*fresh, *self.exchange.due_rechecks()]
            if self.exchange.round_at() <= self._host.now():
                somebody = self.exchange.next_round()
                some += [] if somebody is None else [somebody]
            for peer in some:
                self._endpoint.guard.start(nursery, peer, self._compare, peer)
            due = min(self.exchange.due_at(), self.exchange.round_at())
            with trio.move_on_after(max(due - self._host.now(), _LEAST_WAIT)):
                await news.wait()
            await trio.sleep(defaults.EXCHANGE_TURN)

    async def _account_links(self) -> None:
        """Pass links that were gained or lost to the replica, which selects the authors to
        store."""
        while self._changes:
            peer, up = self._changes.pop(0)
            with self._endpoint.guard.around(peer):
                async with self._lock:
                    await (self.replica.linked(peer) if up else self.replica.unlinked(peer))

    async def _pull(self, pull: Pull) -> None:
        await self.exchange.pull(pull)
        self.wake()

    async def _compare(self, peer: PeerId) -> None:
        await self.exchange.compare(peer)
        self.wake()

    async def _refill(self) -> None:
        while True:
            await trio.sleep(defaults.REFILL)
            async with self._lock:
                await self.replica.refill()
            self.wake()


_NO_LINK = Refusal("no-link", "the link has ended")
_LEAST_WAIT = 0.01  # seconds; a shorter wait could round to 0 and spin on a stopped clock
