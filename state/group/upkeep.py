"""What a node does for its group, and on its behalf: the trio shell of `group.py`.

It applies each new decision to the feeds, the links and the views, and keeps up what this node's
role asks for: the founder says what the group is, an owner hands new secrets to the members.
"""

from collections.abc import Callable, Collection

import trio

from ...transport.endpoint import Endpoint
from ...transport.hello import INVITATION
from ...transport.host import Host
from ...transport.identity import Identity, PeerId, public_key_of
from ...transport.link import Link
from .. import defaults
from ..errors import FeedFull, GroupRefused, StateError, StoreRefused
from ..replication import Replication
from . import facts
from .admission import NOT_A_MEMBER, REVOKED
from .facts import GROUP
from .group import Group
from .management import Management
from .ownfeed import OwnFeed
from .rotation import Rotation
from .rule import Order
from .sealing import box_of


class Upkeep:
    """Of one node and its group. `on_change` are called after each decision with the one before."""

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
        """Why this node cannot say what it has to say to its group."""
        self._host = host
        self._endpoint = endpoint
        self._identity = identity
        self._replication = replication
        self._replica = replication.replica
        self._own = own
        self._news = trio.Event()
        self._decided = trio.Event()
        self._rotation = Rotation(host, identity, group, own, self.wake)
        self.management = Management(
            host, identity, group, self._replica, own, self._rotation, self.until
        )
        self.held = False
        """What a founder had said may be with others: it says nothing new before one was asked."""
        replication.exchange.on_reported.append(lambda peer: self._release())
        self._strangers: dict[PeerId, float] = {}  # with a link, since when
        group.on_news = self.wake

    def _release(self) -> None:
        self.held = False
        self.wake()

    def wake(self) -> None:
        """There may be something to do."""
        self._news.set()

    # Deciding.

    async def more(self) -> Collection[bytes]:
        """Whose feeds are to be kept besides those that are, as the stored feeds have it."""
        before = set(self._replica.authors.keys())
        await self.settle()
        return set(self._replica.authors.keys()) - before

    async def settle(self) -> None:
        """Decide, until what is decided is what the feeds say when they end where it says.

        As taking in: one caller at a time.
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
        """Until this node has looked again at what is said."""
        await self._decided.wait()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Until that is decided. Raises GroupRefused where the disk does not take it in time."""
        with trio.move_on_after(defaults.GROUP_PATIENCE):
            while not holds():
                self.wake()
                await self.decided()
            return
        raise GroupRefused(
            "not-written",
            "the change is not on disk yet",
            hint="it will be: `shoal group` shows it then; `shoal status` says what is in the way",
        )

    async def run(self) -> None:
        """Until cancelled."""
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
        """From who is revoked at once, from other strangers after a while: they may only be new.
        Whom an invitation let in stays, though it never asks to be a member, as a browser does."""
        now, strangers = self._host.now(), dict[PeerId, float]()
        for link in self._endpoint.links():
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
                    "what this node has said of its group is not on its disk any more",
                    hint="let it run until another member is there, which gives it back",
                )
            box = box_of(self._identity)
            self._own.set("group", facts.ABOUT, facts.about_fact("", group.charter.nonce, box))
        await self._rotation.keep_up()
