"""One fetch: asks peers for chunks, verifies and stores each, until none is missing."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import trio

from ..transport.calls import Handler, Reply
from ..transport.errors import CallRefused, LinkClosed
from ..transport.frame import Bytes, Priority
from ..transport.host import Host
from ..transport.identity import PeerId
from .chunkstore import ChunkStore
from .defaults import (
    BACKOFF_MAX,
    HAVE_RANGES,
    HAVE_REFRESH,
    HAVE_TIMEOUT,
    PEERS_AT_ONCE,
    REMOVED_PAUSE,
    TICK,
    VAIN_LIMIT,
)
from .errors import ChunkCorrupt, FetchFailed, ModelError
from .manifest import Manifest
from .transfer import Transfer

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


class Switchboard(Protocol):
    """What is needed of an `Endpoint`."""

    def handle(self, method: str, handler: Handler) -> None: ...
    def link(self, peer: PeerId) -> Caller | None: ...
    def on_link_quiet(self, callback: Callable[[Any], None]) -> None: ...
    def on_link_back(self, callback: Callable[[Any], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class FetchReport:
    """What a fetch did: chunks and bytes by peer, seconds, and who sent wrong bytes."""

    chunks: int
    size: int
    seconds: float
    by_peer: Mapping[PeerId, int]
    liars: tuple[PeerId, ...]


class Fetch:
    """Fetches `wanted` (digest -> bytes) of one model, which `transfer` was made for.

    `run` it once."""

    def __init__(
        self,
        host: Host,
        switchboard: Switchboard,
        store: ChunkStore,
        manifest: Manifest,
        transfer: Transfer,
        wanted: Mapping[str, int],
        *,
        peers: Peers,
        on_chunk: Callable[[int], None],
        on_liar: Callable[[PeerId, str], None],
        patience: float,
    ) -> None:
        self._host = host
        self._switchboard = switchboard
        self._store = store
        self._manifest = manifest
        self._order = list(manifest.chunks)
        self._wanted = wanted
        self._peers = peers
        self._on_chunk = on_chunk
        self._on_liar = on_liar
        self._patience = patience
        self._transfer = transfer
        self._scopes: dict[tuple[PeerId, str], trio.CancelScope] = {}
        self._watches: dict[PeerId, trio.CancelScope] = {}  # who has a place
        self._vain: Counter[PeerId] = Counter()  # askings of a peer that brought nothing
        self._removed: Counter[PeerId] = Counter()  # how often it has lost its place
        self._rests: dict[PeerId, float] = {}  # until when it is not met again
        self._news = trio.Event()
        self._last_chunk = 0.0  # when one came; `run` begins it, this may run in a thread
        self._bytes: Counter[PeerId] = Counter()
        self._failure: ModelError | None = None

    async def run(self) -> FetchReport:
        """Returns when every chunk is stored. Raises FetchFailed, DiskFull, ModelError."""
        start = self._last_chunk = self._host.now()
        async with trio.open_nursery() as nursery:
            while not self._transfer.done and self._failure is None:
                self._news = trio.Event()
                self._meet(nursery)
                while (choice := self._transfer.choose(self._host.now())) is not None:
                    nursery.start_soon(self._get, *choice)
                with trio.move_on_after(TICK):
                    await self._news.wait()
                if self._host.now() - self._last_chunk > self._patience:
                    self._failure = self._gave_up()
            nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure
        return FetchReport(
            chunks=len(self._wanted),
            size=sum(self._wanted.values()),
            seconds=self._host.now() - start,
            by_peer=dict(self._bytes),
            liars=tuple(sorted(self._transfer.liars)),
        )

    def _gave_up(self) -> FetchFailed:
        left, liars = self._transfer.left, len(self._transfer.liars)
        lied = f"; {liars} peers sent wrong bytes and were dropped" if liars else ""
        return FetchFailed(
            "no-source",
            f"no linked peer gave any of {left} missing chunks of model "
            f"{self._manifest.root[:16]} for {self._patience:g} s{lied}",
            hint="see who is linked and what they hold: `shoal peers`; or bring the model: "
            "`shoal model add FOLDER`",
        )

    def _meet(self, nursery: trio.Nursery) -> None:
        """Ask linked peers that are new here what they have; never removed ones come first."""
        now = self._host.now()
        for peer in sorted(self._peers(), key=self._removed.__getitem__):
            resting = self._rests.get(peer, now) > now
            if peer in self._watches or resting or not self._is_source(peer):
                continue
            if len(self._watches) >= PEERS_AT_ONCE and not self._make_room(now):
                break
            scope = self._watches[peer] = trio.CancelScope()
            nursery.start_soon(self._watch, peer, scope)

    def _make_room(self, now: float) -> bool:
        """Take the place of a peer that says it has chunks and never brought one, if any."""
        for peer in self._watches:
            if self._vain[peer] >= VAIN_LIMIT and not self._transfer.delivered(peer):
                self._remove(peer, now)
                return True
        return False

    def _remove(self, peer: PeerId, now: float) -> None:
        first, most = REMOVED_PAUSE
        self._rests[peer] = now + min(first * 2 ** self._removed[peer], most)
        self._removed[peer] += 1
        del self._vain[peer]  # it gets as many chances when it is met again
        self._watches.pop(peer).cancel()
        self._transfer.offers(peer, ())  # so that nothing is asked of it meanwhile
        for asked, digest in list(self._scopes):
            if asked == peer:
                self._cancel(peer, digest)

    def _is_source(self, peer: PeerId) -> bool:
        link = self._switchboard.link(peer)
        return peer not in self._transfer.liars and link is not None and not link.quiet

    def quiet(self, peer: PeerId) -> None:
        """It is not heard of any more: what it was asked for is asked of others."""
        for digest in self._transfer.quiet(peer):
            self._cancel(peer, digest)
        self._news.set()

    def back(self, peer: PeerId) -> None:
        """It is there again, and so is what it has."""
        self._transfer.back(peer)
        self._news.set()

    async def _watch(self, peer: PeerId, place: trio.CancelScope) -> None:
        with place:
            await self._keep_up(peer)
        if self._watches.get(peer) is place:
            del self._watches[peer]

    async def _keep_up(self, peer: PeerId) -> None:
        """With what a peer has, until it leaves, lies, or falls silent."""
        pause = HAVE_REFRESH
        while peer in self._peers() and self._is_source(peer):
            has = await self._ask(peer)
            self._vain[peer] += not has
            if has is None and pause >= BACKOFF_MAX:
                break  # room for another one; it is met again later
            if has is not None and self._transfer.offers(peer, has):
                pause = HAVE_REFRESH
                self._news.set()
            await trio.sleep(BACKOFF_MAX if self._transfer.has_all(peer) else pause)
            pause = min(2 * pause, BACKOFF_MAX)

    async def _ask(self, peer: PeerId) -> list[str] | None:
        link = self._switchboard.link(peer)
        if link is None:
            return None
        try:
            reply = await link.call(
                "model.have", {"root": self._manifest.root}, timeout=HAVE_TIMEOUT
            )
        except (CallRefused, LinkClosed):
            return None
        return read_ranges(reply.payload, self._order)

    async def _get(self, peer: PeerId, digest: str) -> None:
        with trio.CancelScope() as scope:
            self._scopes[peer, digest] = scope
            try:
                await self._get_now(peer, digest)
            finally:
                del self._scopes[peer, digest]
                self._transfer.abandoned(peer, digest)  # nothing, unless it was cancelled
                self._news.set()

    async def _get_now(self, peer: PeerId, digest: str) -> None:
        link = self._switchboard.link(peer)
        if link is None:
            self._transfer.failed(peer, digest, self._host.now())
            return
        try:
            reply = await link.call(
                "model.chunk",
                {"digest": digest},
                priority=Priority.BULK,
                timeout=self._transfer.timeout(peer),
            )
        except CallRefused as error:
            self._vain[peer] += 1
            if error.code == "not-held":
                self._transfer.absent(peer, digest)
            else:
                self._transfer.failed(peer, digest, self._host.now())
        except LinkClosed:
            self._transfer.failed(peer, digest, self._host.now())
        else:
            await self._take_in(peer, digest, reply.payload)

    async def _take_in(self, peer: PeerId, digest: str, payload: Bytes) -> None:
        try:
            await self._host.offload(self._store.put, digest, payload)
        except ChunkCorrupt:
            self._drop_liar(peer, digest)
            return
        except ModelError as error:  # the disk is full, or cannot be written
            self._failure = error
            return
        if len(payload) != self._wanted[digest]:  # the right bytes: it is not the peer that lies
            self._failure = ModelError(
                "bad-manifest",
                f"chunk {digest[:16]} of model {self._manifest.root[:16]} has {len(payload)} "
                f"bytes, its manifest says {self._wanted[digest]}",
            )
            return
        fresh = self._transfer.wants(digest)
        for other in self._transfer.arrived(peer, digest, self._host.now()):
            self._cancel(other, digest)
        if fresh:
            self._last_chunk = self._host.now()
            self._bytes[peer] += len(payload)
            self._on_chunk(len(payload))

    def _drop_liar(self, peer: PeerId, digest: str) -> None:
        first = peer not in self._transfer.liars
        for other in self._transfer.lied(peer):
            self._cancel(peer, other, unless=digest)
        if first:
            self._on_liar(peer, digest)

    def _cancel(self, peer: PeerId, digest: str, *, unless: str = "") -> None:
        scope = self._scopes.get((peer, digest))
        if scope is not None and digest != unless:
            scope.cancel()


def pack_ranges(held: Sequence[bool]) -> bytes:
    """Which chunks of the ordered list are held, as start and stop of each run, four bytes
    each (big-endian); at most `HAVE_RANGES` runs."""
    words: list[int] = []
    for index, here in enumerate(held):
        if here and (not words or words[-1] != index):
            if len(words) == 2 * HAVE_RANGES:
                break
            words += [index, index + 1]
        elif here:
            words[-1] = index + 1
    return b"".join(word.to_bytes(4) for word in words)


def read_ranges(payload: Bytes, order: Sequence[str]) -> list[str] | None:
    """The digests a peer says it has; None where it says it badly."""
    data = bytes(payload[: 8 * HAVE_RANGES + 1])  # one byte too many is no whole run
    words = [int.from_bytes(data[i : i + 4]) for i in range(0, len(data), 4)]
    rising = all(a < b for a, b in pairwise(words))
    if len(data) % 8 or not rising or words[-1:] > [len(order)]:
        return None
    return [d for i in range(0, len(words), 2) for d in order[words[i] : words[i + 1]]]
