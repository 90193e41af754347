"""A fetch: requests chunks from peers, verifies and stores them, until none is missing."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from ...transport.errors import CallRefused, LinkClosed
from ...transport.identity import PeerId
from ...transport.lane.frame import Bytes, Priority
from ..content.content import Content
from ..content.ranges import read_ranges
from ..defaults import (
    BACKOFF_MAX,
    FAILED_LIMIT,
    HAVE_REFRESH,
    HAVE_TIMEOUT,
    NEWS_CHUNKS,
    NEWS_PAUSE,
    NEWS_PER_S,
    OFFER_STEP,
    PATIENCE,
    PEERS_AT_ONCE,
    REMOVED_PAUSE,
    SETTLE_AFTER,
    SETTLE_CHUNKS,
    SPACE_LOOK,
    SPACE_STEP,
    TICK,
)
from ..errors import OTHERS_HINT, ChunkCorrupt, FetchFailed, ModelError, NotEnoughDisk
from .announcing import Announcer
from .intake import Intake, UnverifiedChunk
from .parts import ExchangeParts
from .peersource import PeerSource
from .switchboard import Peers
from .transfer import Transfer

_ADD = {"model": "`shoal model add FOLDER`", "blob": "`shoal blob add FILE`"}

Notify = Callable[[Content, list[str]], None]
"""Notifies the peers that watch a content of new chunks."""


@dataclass(frozen=True, slots=True)
class FetchReport:
    """Result of a fetch.

    `size` and `by_peer` are in bytes, and `liars` are the peers that sent wrong bytes.
    """

    chunks: int
    size: int
    seconds: float
    by_peer: Mapping[PeerId, int]
    liars: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class FetchTerms:
    """When a fetch gives up, and how far it may fill the disk."""

    patience: float = PATIENCE
    """Seconds without a new chunk after which the fetch fails."""
    asked: bool = False
    """Whether the owner requested the content by name. It may then exceed a default quota."""
    on_full: Callable[[NotEnoughDisk], None] | None = None
    """Called when the disk is full. The fetch then waits for space. None: it fails instead."""


DEFAULT_TERMS: Final = FetchTerms()


@dataclass(frozen=True, slots=True)
class FetchGoal:
    """Goal of a fetch: the chunks, the peers that may have them, and the limits."""

    content: Content
    wanted: Mapping[str, int]
    """Chunks to fetch: digest to bytes."""
    peers: Peers
    on_chunk: Callable[[int], None]
    """Called with the bytes of each stored chunk."""
    terms: FetchTerms


class Fetch:
    """Fetch of the chunks of `goal`. Call `run` once.

    `transfer` chooses the requests and must have been made for the wanted chunks. `notify` is
    called with new chunks.
    """

    def __init__(
        self, parts: ExchangeParts, goal: FetchGoal, transfer: Transfer, notify: Notify
    ) -> None:
        self._host = parts.host
        self._guard = parts.guard
        self._switchboard = parts.switchboard
        self._store = parts.library.store
        self._on_liar = parts.swarm.on_liar
        self._goal = goal
        self._content = goal.content
        self._wanted = goal.wanted
        self._peers = PeerSource(parts, goal.content.root, goal.peers)
        self._announcer = Announcer(parts, goal.content)
        self._notify = notify
        self._transfer = transfer
        self._scopes: dict[tuple[PeerId, str], trio.CancelScope] = {}
        self._watches: dict[PeerId, trio.CancelScope] = {}  # peers in use
        self._failed_requests: Counter[PeerId] = Counter()
        self._removed: Counter[PeerId] = Counter()  # how often a peer was replaced
        self._backoffs: dict[PeerId, float] = {}  # replaced peer -> when to retry it
        self._news = trio.Event()
        self._nursery: trio.Nursery | None = None  # runs the requests
        self._intake = Intake(self._host, self._store, self._stored)
        self._arrivals = trio.lowlevel.ParkingLot()
        self._unreported: list[str] = []  # new chunks that watchers have not been notified of
        self._heard: Counter[tuple[PeerId, int]] = Counter()  # (peer, second) -> notifications
        self._full = False  # whether the fetch is waiting for disk space
        self._reported_full = False  # `on_full` was called after the latest stored chunk
        self._last_chunk = 0.0  # when the latest chunk was stored; `run` sets the start
        self._bytes: Counter[PeerId] = Counter()
        self._failure: ModelError | None = None

    async def run(self) -> FetchReport:
        """Fetch until every chunk is stored, and return a report.

        Raises FetchFailed if no peer sends a missing chunk, DiskFull if the disk is full and there
        is no `on_full`, and ModelError if the content is invalid or cannot be written.
        """
        start = self._last_chunk = self._host.now()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._settle)
            nursery.start_soon(self._pass_on)
            nursery.start_soon(self._peers.run)
            nursery.start_soon(self._intake.run)
            while not self._transfer.done and self._failure is None:
                self._news = trio.Event()
                self._watch_new(nursery)
                self._ask_on()
                if self._full:
                    await self._await_space()
                with trio.move_on_after(TICK):
                    await self._news.wait()
                if self._host.now() - self._last_chunk > self._goal.terms.patience:
                    self._failure = self._no_source()
            nursery.cancel_scope.cancel()
        await self._host.offload(self._store.settle)
        self._notify_watchers()
        if self._failure is not None:
            raise self._failure
        await self._announcer.announce()
        return FetchReport(
            chunks=len(self._wanted),
            size=sum(self._wanted.values()),
            seconds=self._host.now() - start,
            by_peer=dict(self._bytes),
            liars=tuple(sorted(self._transfer.liars)),
        )

    def _ask_on(self) -> None:
        """Send all requests that may be sent now."""
        while (
            self._nursery is not None
            and not self._full
            and (choice := self._transfer.choose(self._host.now()))
        ):
            self._guard.start(self._nursery, choice[0], self._get, *choice)

    async def _settle(self) -> None:
        """Make staged chunks durable, many at a time, until cancelled."""
        while True:
            with trio.move_on_after(SETTLE_AFTER):
                while self._store.unsettled < SETTLE_CHUNKS:
                    await self._arrivals.park()
            if self._store.unsettled:
                try:
                    await self._host.offload(self._store.settle)
                except ModelError as error:
                    self._refused(error)
                    await trio.sleep(SPACE_LOOK)

    async def _pass_on(self) -> None:
        """Report new chunks until cancelled.

        Peers that watch the content are notified immediately. The swarm is told when an
        announcement is due.
        """
        here = len(self._content.chunks) - self._transfer.left
        while True:
            await self._arrivals.park()
            await trio.sleep(NEWS_PAUSE)
            here += len(self._unreported)
            self._notify_watchers()
            if self._announcer.is_due(here):
                await self._announcer.announce()

    def _notify_watchers(self) -> None:
        """Send notifications of all new chunks that were not reported yet."""
        told, self._unreported = self._unreported, []
        for start in range(0, len(told), NEWS_CHUNKS):
            self._notify(self._content, told[start : start + NEWS_CHUNKS])

    def _refused(self, error: ModelError) -> None:
        """Handle a failed write.

        A full disk may get space again; any other error ends the fetch.
        """
        if not isinstance(error, NotEnoughDisk) or self._goal.terms.on_full is None:
            self._failure = error
        elif not self._full:
            self._full = True
            if not self._reported_full:
                self._reported_full = True
                self._goal.terms.on_full(error)
        self._news.set()

    async def _await_space(self) -> None:
        """Wait until the missing chunks, or `SPACE_STEP` bytes of them, fit on the disk."""
        while self._full:
            self._last_chunk = self._host.now()  # the delay must not count as a lack of providers
            await trio.sleep(SPACE_LOOK)
            left = sum(
                size for digest, size in self._wanted.items() if self._transfer.wants(digest)
            )
            try:
                await self._host.offload(self._store.require_space, min(left, SPACE_STEP))
            except ModelError:
                continue
            self._full = False

    def _no_source(self) -> FetchFailed:
        """Return the error for a fetch without a provider."""
        left, liars = self._transfer.left, len(self._transfer.liars)
        lied = f"; {liars} peers sent wrong bytes and were dropped" if liars else ""
        return FetchFailed(
            "no-source",
            f"no linked peer sent any of {left} missing chunks of {self._content.name} "
            f"within {self._goal.terms.patience:g} s{lied}",
            hint=f"`shoal peers` lists the linked peers and what they hold; or add the "
            f"{self._content.kind} here: {_ADD[self._content.kind]}",
        )

    def _watch_new(self, nursery: trio.Nursery) -> None:
        """Start to use linked peers that are not in use yet.

        Peers that were replaced are tried last.
        """
        now = self._host.now()
        for peer in sorted(self._peers(), key=self._removed.__getitem__):
            resting = self._backoffs.get(peer, now) > now
            if peer in self._watches or resting or not self._is_source(peer):
                continue
            if len(self._watches) >= PEERS_AT_ONCE and not self._replace_peer(now):
                break
            scope = self._watches[peer] = trio.CancelScope()
            self._guard.start(nursery, peer, self._watch, peer, scope)

    def _replace_peer(self, now: float) -> bool:
        """Remove a peer that claims to have chunks but has never delivered one.

        Returns whether there was such a peer.
        """
        for peer in self._watches:
            if self._failed_requests[peer] >= FAILED_LIMIT and not self._transfer.delivered(peer):
                self._remove(peer, now)
                return True
        return False

    def _remove(self, peer: PeerId, now: float) -> None:
        """Stop using a peer, cancel its requests, and start the pause before its next use."""
        first, most = REMOVED_PAUSE
        self._backoffs[peer] = now + min(first * 2 ** self._removed[peer], most)
        self._removed[peer] += 1
        del self._failed_requests[peer]  # it starts afresh when it is tried again
        self._watches.pop(peer).cancel()
        self._transfer.offers(peer, ())  # so that no chunk is requested from it
        for asked, digest in list(self._scopes):
            if asked == peer:
                self._cancel(peer, digest)

    def _is_source(self, peer: PeerId) -> bool:
        """Return whether a peer has a working link and has not sent wrong bytes."""
        link = self._switchboard.link(peer)
        return peer not in self._transfer.liars and link is not None and not link.quiet

    def quiet(self, peer: PeerId) -> None:
        """Cancel the requests to a peer that has fallen silent. Other peers are asked instead."""
        for digest in self._transfer.quiet(peer):
            self._cancel(peer, digest)
        self._news.set()

    def back(self, peer: PeerId) -> None:
        """Request chunks again from a peer that was silent. It is assumed to have the chunks that
        it had before."""
        self._transfer.back(peer)
        self._news.set()

    async def _watch(self, peer: PeerId, scope: trio.CancelScope) -> None:
        """Use a peer as a source of chunks until `scope` is cancelled or the peer is unusable."""
        try:
            with scope:
                await self._poll(peer)
        finally:
            if self._watches.get(peer) is scope:
                del self._watches[peer]
                if self._switchboard.link(peer) is None:
                    self._transfer.offers(peer, ())  # without a link it can provide nothing

    async def _poll(self, peer: PeerId) -> None:
        """Ask a peer repeatedly which chunks it has.

        Ends when the peer is no longer offered by the caller, has sent wrong bytes, is silent, or
        does not reply.
        """
        pause = HAVE_REFRESH
        while peer in self._peers() and self._is_source(peer):
            watching, has = await self._ask(peer)
            self._failed_requests[peer] += not has
            if has is None and pause >= BACKOFF_MAX:
                break  # free the slot for another peer; this one is tried again later
            if has is not None and await self._takes(peer, has):
                if self._transfer.delivered(peer):  # a peer that never delivers is not polled often
                    pause = HAVE_REFRESH
                self._news.set()
            waits = watching or self._transfer.has_all(peer)
            await trio.sleep(BACKOFF_MAX if waits else pause)
            pause = min(2 * pause, BACKOFF_MAX)

    async def _takes(self, peer: PeerId, has: list[str]) -> bool:
        """Register the chunks that a peer has. Return whether any of them is new for this peer."""
        if len(self._content.chunks) <= OFFER_STEP:
            return self._transfer.offers(peer, has)
        offer = await self._host.offload(self._transfer.weigh, peer, has)
        return self._transfer.take(peer, offer)

    async def _ask(self, peer: PeerId) -> tuple[bool, list[str] | None]:
        """Send `blob.have`.

        Return whether the peer will notify this node of new chunks, and its chunks. The chunks are
        None if the peer did not send a valid reply.
        """
        link = self._switchboard.link(peer)
        if link is None:
            return False, None
        try:
            header = {"root": self._content.root, "watch": True}
            reply = await link.call("blob.have", header, timeout=HAVE_TIMEOUT)
        except (CallRefused, LinkClosed):
            return False, None
        return reply.header.get("watching") is True, read_ranges(reply.payload, self._content.order)

    def take_news(self, peer: PeerId, payload: Bytes) -> None:
        """Register the new chunks in a notification.

        The notification is ignored if the peer is not in use or sends too many.
        """
        second = int(self._host.now())
        if peer not in self._watches or self._heard[peer, second] >= NEWS_PER_S:
            return
        if (peer, second) not in self._heard:
            self._heard = Counter({key: n for key, n in self._heard.items() if key[1] == second})
        self._heard[peer, second] += 1
        has = read_ranges(payload, self._content.order, NEWS_CHUNKS)
        if has is not None and self._transfer.adds(peer, has):
            self._news.set()

    async def _get(self, peer: PeerId, digest: str) -> None:
        """Request a chunk from a peer, and queue the bytes to be stored."""
        payload: Bytes | None = None
        with trio.CancelScope() as scope:
            self._scopes[peer, digest] = scope
            try:
                payload = await self._get_now(peer, digest)
            finally:
                del self._scopes[peer, digest]
                if payload is None:
                    self._transfer.abandoned(peer, digest)  # matters only if it was cancelled
                    self._news.set()
        if payload is not None:
            self._transfer.received(peer, digest, self._host.now())
            self._intake.put(UnverifiedChunk(peer, digest, payload))
            self._ask_on()

    async def _get_now(self, peer: PeerId, digest: str) -> Bytes | None:
        """Request a chunk. Return its unverified bytes, or None if the peer did not send it."""
        link = self._switchboard.link(peer)
        if link is None:
            self._transfer.failed(peer, digest, self._host.now())
            return None
        header = {"digest": digest}
        if self._transfer.spare(peer, digest):
            header["spare"] = self._content.root
        try:
            reply = await link.call(
                "blob.chunk",
                header,
                priority=Priority.BULK,
                timeout=self._transfer.timeout(peer),
            )
        except CallRefused as error:
            if error.code == "given" and "spare" in header:
                self._transfer.given(peer, digest, self._host.now())
                return None
            self._failed_requests[peer] += 1
            if error.code == "not-held":
                self._transfer.absent(peer, digest)
            else:
                self._transfer.failed(peer, digest, self._host.now())
        except LinkClosed:
            self._transfer.failed(peer, digest, self._host.now())
        else:
            return reply.payload
        return None

    def _stored(self, arrival: UnverifiedChunk, error: ModelError | None) -> None:
        """Handle the result of storing a chunk. `error` is None if it was stored."""
        peer, digest, payload = arrival
        if error is None and len(payload) != self._wanted[digest]:
            # The bytes match the digest, so the manifest is wrong and not the peer.
            error = self._failure = ModelError(
                "bad-manifest" if self._content.kind == "model" else "bad-blob",
                f"chunk {digest[:16]} of {self._content.name} has {len(payload)} bytes, "
                f"expected {self._wanted[digest]}",
                hint=OTHERS_HINT if self._content.kind == "model" else None,
            )
        elif isinstance(error, ChunkCorrupt):
            self._drop_liar(peer, digest)
        elif error is not None:
            self._refused(error)
        if error is None:
            self._count_stored(peer, digest, len(payload))
        else:
            self._transfer.abandoned(peer, digest)
        if error is not None or self._transfer.done:
            self._news.set()
        else:
            self._ask_on()

    def _count_stored(self, peer: PeerId, digest: str, size: int) -> None:
        """Count a stored chunk, and cancel other requests for it."""
        self._unreported.append(digest)
        self._arrivals.unpark_all()
        fresh = self._transfer.wants(digest)
        for other in sorted(self._transfer.arrived(peer, digest, self._host.now())):
            self._cancel(other, digest)
        if fresh:
            self._last_chunk = self._host.now()
            self._reported_full = False
            self._bytes[peer] += size
            self._goal.on_chunk(size)

    def _drop_liar(self, peer: PeerId, digest: str) -> None:
        """Cancel all requests to a peer that sent wrong bytes, and report the peer once."""
        first = peer not in self._transfer.liars
        for other in self._transfer.lied(peer):
            self._cancel(peer, other)
        if first:
            self._on_liar(peer, digest)

    def _cancel(self, peer: PeerId, digest: str) -> None:
        """Cancel the request for a chunk from a peer, if it is pending."""
        scope = self._scopes.get((peer, digest))
        if scope is not None:
            scope.cancel()
