"""This node's own feeds: writes its facts to them as entries."""

from collections.abc import Mapping
from math import inf

import trio

from ..transport.host.seam import Host
from ..transport.identity import Identity, PeerId
from . import defaults
from .errors import BadOrder, StateError, StoreRefused
from .feeds.committer import Trouble
from .feeds.entry import Entry, FeedName
from .feeds.feed import Feed
from .feeds.ownfacts import OwnFacts, WrittenFacts
from .feeds.writer import FeedWriter
from .replication.replication import Replication

OWN_FEEDS, SAME_KEY = "state", "same-key"
"""Conditions that are reported to `trouble`, besides those of `feeds/committer.py`."""
LEAST_WAIT = 0.01  # seconds; a shorter wait could round to 0 and spin on a stopped clock
_CONTESTED = "another node with this node's identity was seen"
_CONTESTED_HINT = "a data folder must run once: stop the copy, or give it another folder"


class OwnFeeds:
    """The feeds of the node with `identity`.

    Facts may be set by `say` at any time, and are written after `begin`. `trouble` is called if
    facts do not fit, or if another node has the same key.
    """

    def __init__(
        self, host: Host, identity: Identity, replication: Replication, trouble: Trouble
    ) -> None:
        self._host = host
        self._identity = identity
        self._replication = replication
        self._trouble = trouble
        self._facts = OwnFacts()
        self._writer: FeedWriter | None = None
        self._came_back = False  # a peer sent an entry of these feeds
        self._due = trio.Event()  # there is something to write

    @property
    def begun(self) -> bool:
        """Whether `begin` was called."""
        return self._writer is not None

    @property
    def writer(self) -> FeedWriter:
        """The writer of the feeds. `begin` must have been called."""
        assert self._writer is not None, "the state is not running"
        return self._writer

    def begin(self, feeds: Mapping[FeedName, Feed], held_until: float) -> None:
        """Begin to write to `feeds`, at the time `held_until` or later (see `FeedWriter`)."""
        writer = self._writer = FeedWriter(
            self._identity,
            feeds.__getitem__,
            lot=lambda below: int.from_bytes(self._host.entropy(8)) % below,
            held_until=held_until,
        )
        replica, exchange = self._replication.replica, self._replication.exchange

        def takes(entry: Entry) -> bool:
            self._came_back = True
            return writer.takes(entry, self._host.now())

        def reported(peer: PeerId) -> None:
            """Record that a peer has reported its heads of this node's feeds.

            Peers compare feeds often, so `write` is woken only if the report changes something.
            """
            if writer.reported(peer, len(list(exchange.peers))) or self._came_back:
                self._came_back = False
                self._due.set()

        replica.takes_own = takes
        replica.wants_own = True
        exchange.on_reported.append(reported)

    def say(self, said: WrittenFacts) -> None:
        """Replace the facts that `said` covers (see `State.say`)."""
        self._facts.say(said)
        self._settle()

    def wake(self) -> None:
        """Write what is due now."""
        self._due.set()

    def renew(self) -> None:
        """Write all facts again, because the feeds were lost."""
        if self._writer is not None:
            self._writer.renew()
            self._due.set()

    def _settle(self) -> None:
        """Pass this node's facts to the writer of its feeds, and report those that do not fit."""
        if self._writer is None:
            return
        self._trouble(OWN_FEEDS, self._facts.settle(self._writer))
        contested = self._host.now() < self._writer.contested_at + defaults.CONTESTED
        error = StateError(SAME_KEY, _CONTESTED, hint=_CONTESTED_HINT) if contested else None
        self._trouble(SAME_KEY, error)
        self._due.set()

    # Tasks.

    async def write(self) -> None:
        """Write facts as entries, until cancelled. Facts that are set together share an entry."""
        writer = self.writer
        while True:
            wait = writer.wake(self._host.now())
            with trio.move_on_after(inf if wait is None else max(wait, LEAST_WAIT)):
                await self._due.wait()
            self._due = trio.Event()
            self._facts.settle(writer)  # peers may have sent facts of an earlier run
            entries = writer.flush(self._host.now(), int(self._host.wall() * 1000))
            if not entries:
                await trio.sleep(LEAST_WAIT)
                continue
            try:
                await self._replication.write(entries, writer.stored)
            except (StoreRefused, BadOrder):
                writer.failed(entries)
                await trio.sleep(defaults.REFUSED_PAUSE)

    async def stay_true(self) -> None:
        """Pass this node's facts to the writer periodically, until cancelled, so that facts that
        did not fit are retried."""
        while True:
            self._settle()
            await trio.sleep(defaults.SETTLE_AGAIN)
