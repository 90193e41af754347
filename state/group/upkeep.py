"""Tasks that apply a group's decisions at a node; `group.py` makes the decisions without I/O.

A decision is the result of applying the group's rule to its `group` feeds: the members, their
roles, and where revoked feeds end. Each new decision is applied to the feeds, the links and the
views. The tasks also do the duties of this node's role: a founder describes the group, and an owner
sends new secrets to the members.
"""

from collections.abc import Callable, Collection

import trio

from ...transport.dial.endpoint import Endpoint
from ...transport.handshake.hello import INVITATION
from ...transport.host.seam import Host
from ...transport.identity import Identity, PeerId, public_key_of
from ...transport.link.link import Link
from .. import defaults
from ..errors import FeedFull, GroupRefused, StateError, StoreRefused
from ..feeds.entry import FeedName
from ..feeds.feed import EntryVerdict
from ..replication.replicafeeds import Watcher
from ..replication.replication import Replication
from . import facts
from .facts import GROUP
from .group import NOT_A_MEMBER, REVOKED, Group
from .management import Management
from .ownfeed import OwnFeed
from .rotation import Rotation
from .rule import Order
from .sealing import box_of


class Upkeep(Watcher):
    """Tasks that apply the decisions of one node's group, whose `group` feeds it watches.

    The callbacks in `on_change` are called after each decision, with the previous order.
    """

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        identity: Identity,
        group: Group,
        replication: Replication,
        own: OwnFeed,
    ) -> None:
        self.group = group
        self.on_change: list[Callable[[Order], None]] = []
        self.trouble: StateError | None = None
        """The error because of which this node cannot write the facts that its role requires, or
        None."""
        self._host = host
        self._endpoint = endpoint
        self._identity = identity
        self._replication = replication
        self._replica = replication.replica
        self._own = own
        self._news = trio.Event()
        self._decided = trio.Event()
        self.rotation = Rotation(host, identity, group, own, self.wake)
        """Replaces the group's secret when a member is revoked."""
        self.management = Management(host, group, self._replica, own, self.rotation, self.until)
        self.held = False
        """Whether a founder must wait before it writes facts. Peers may have its earlier facts, so
        it first compares its feeds with a peer."""
        replication.exchange.on_reported.append(lambda peer: self._release())
        # linked peers that are not members, and since when
        self._strangers: dict[PeerId, float] = {}

    def _release(self) -> None:
        self.held = False
        self.wake()

    def wake(self) -> None:
        """Wake the loop, because there may be work."""
        self._news.set()

    # The `Watcher` interface.

    def changed(self, name: FeedName, verdict: EntryVerdict) -> None:
        before = self.group.news
        self.group.changed(name, verdict)
        if self.group.news != before:
            self.wake()

    def dropped(self, author: PeerId) -> None:
        """Do nothing. The author's facts count until its feed has been fetched again."""

    # Deciding.

    async def more(self) -> Collection[bytes]:
        """Apply the group's rule to the stored feeds.

        Returns the public keys of the authors that are stored only because of it.
        """
        before = set(self._replica.authors.keys())
        await self.settle()
        return set(self._replica.authors.keys()) - before

    async def settle(self) -> None:
        """Apply the group's rule repeatedly, until the result no longer changes the feeds.

        A decision may cut feeds at the ends that it sets, and may require further feeds to be read.
        The rule is then applied again to the changed feeds. Only one caller at a time may call
        this, as for changes of the replica.
        """
        group = self.group
        while True:
            for peer in group.unread():
                group.read(peer, await self._replica.facts(public_key_of(peer), GROUP))
            before = group.order
            if not group.decide():
                return
            await self._replica.grouped(group.order.speakers())
            await self._replica.cut(group.order.ends())
            for callback in self.on_change:
                callback(before)

    async def decided(self) -> None:
        """Wait until the loop has applied the group's rule once more."""
        await self._decided.wait()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is checked after each decision.

        Raises GroupRefused after GROUP_PATIENCE seconds, usually because the disk refuses the
        change.
        """
        with trio.move_on_after(defaults.GROUP_PATIENCE):
            while not holds():
                self.wake()
                await self.decided()
            return
        raise GroupRefused(
            "not-written",
            "the change is not on disk yet",
            hint="it will be, and `shoal group` then shows it; `shoal status` shows the cause",
        )

    async def run(self) -> None:
        """Apply the group's rule, close links and do this node's duties whenever something changes.

        Runs until cancelled.
        """
        self._endpoint.on_link(lambda link: self.wake())
        self.wake()
        while True:
            with trio.move_on_after(defaults.GROUP_LOOK):
                await self._news.wait()
            self._news = trio.Event()
            try:
                async with self._replication.turn():
                    await self.settle()
            except (StoreRefused, trio.ClosedResourceError):
                await trio.sleep(defaults.REFUSED_PAUSE)
                continue
            self._decided.set()
            self._decided = trio.Event()
            self._part()
            try:
                await self._do_duties()
            except (FeedFull, GroupRefused) as error:
                self.trouble = error
            else:
                self.trouble = None
            self._replication.wake()
            await trio.sleep(defaults.GROUP_PAUSE)

    def _part(self) -> None:
        """Close links to revoked peers at once, and to other non-members after a while.

        Other non-members may be new members, whose grant has not arrived yet. A peer that was
        admitted with an invitation keeps its link even if it never becomes a member, as a browser
        does.
        """
        now, strangers = self._host.now(), dict[PeerId, float]()
        for link in self._endpoint.links():
            with self._endpoint.guard.around(link.peer):
                by = self.group.revoked_by(link.peer)
                if by is not None:
                    link.close(REVOKED, f"revoked by {by}")
                elif not self.group.young and self._is_stranger(link):
                    since = strangers[link.peer] = self._strangers.get(link.peer, now)
                    if now - since > defaults.STRANGER_S:
                        link.close(NOT_A_MEMBER)
        self._strangers = strangers

    def _is_stranger(self, link: Link) -> bool:
        invited = link.status.admitted.kind == INVITATION
        return not invited and self.group.order.role(link.peer) is None

    async def _do_duties(self) -> None:
        group, own = self.group, self._identity.peer
        if own == group.charter.founder:
            if self.held and group.young:
                raise GroupRefused(
                    "nothing-left",
                    "this node's own facts about its group are missing from its disk",
                    hint="keep it running until another member connects, which sends them back",
                )
            box = box_of(self._identity)
            self._own.set("group", facts.ABOUT, facts.about_fact("", group.charter.nonce, box))
        await self.rotation.keep_up()
