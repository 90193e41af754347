"""`Dht`: finding records of others, and publishing those of this node.

The trio shell around the table, the store, look-ups and walks, which do no I/O. It works from the
moment it is made: handlers answer; `run` joins, announces, and keeps what lasts. Spec:
docs/spec/dht.md.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from ..transport.address import Address
from ..transport.endpoint import Endpoint
from ..transport.host import Host
from ..transport.identity import Identity, PeerId
from ..transport.link import Link
from ..transport.place import Nearness, nearness_of
from . import defaults
from .answering import Answering
from .asking import Asking
from .brieflinks import BriefLinks, Connect
from .candidate import Step
from .contact import Contact
from .finding import Found, Gathering, regions
from .foundrecords import FoundRecord
from .joining import Joining
from .key import SPACE, Key, node_key
from .mode import ModeRule
from .ownrecords import OwnRecords
from .pace import Pace
from .persistence import Lasting, Shelf, Trouble
from .publishing import Publishing, PublishReport
from .query import LookupSettings
from .record import Body, Record, open_record
from .recordstore import RecordStore
from .searching import Searching
from .table import Table


@dataclass(frozen=True, slots=True)
class DhtSettings:
    """How one node's DHT works; the defences can be switched off for tests."""

    folder: Path | None = None
    """Where contacts and own records last over a restart; None: nowhere."""
    lookups: LookupSettings = field(default_factory=LookupSettings)
    subnet_limits: bool = True
    """How many of one public network the table takes."""
    store_bytes: int = defaults.STORE_BYTES
    """Of records of others."""
    dial_pauses: tuple[float, float] | None = None
    """Seconds between two dials for background work: the first, and the longest. None: no pause."""


def _nowhere(peer: PeerId) -> Sequence[Address]:
    return ()


class Dht:
    """One for each node.

    `connect` dials for a few questions. `addresses` says where others reach this node, `reachable`
    whether anybody can; `book` where a linked peer may be reached.
    """

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        identity: Identity,
        *,
        connect: Connect,
        addresses: Callable[[], Sequence[Address]],
        reachable: Callable[[], bool] = lambda: False,
        book: Callable[[PeerId], Sequence[Address]] = _nowhere,
        settings: DhtSettings | None = None,
        trouble: Trouble = lambda error: None,
    ) -> None:
        settings = settings or DhtSettings()
        own = node_key(identity.peer)
        self.peer = identity.peer
        self.second_path: Callable[[Key], Iterable[FoundRecord]] = lambda key: ()
        """Records of a key that came another way."""
        self._host = host
        self._addresses = addresses
        self._reachable = reachable
        self._shown: tuple[bool, list[Address], Contact] = False, [], Contact(self.peer)
        self._rule = ModeRule()
        self._rule.decide(reachable(), 0, host.now())
        self._table = Table(own, host.entropy, subnet_limits=settings.subnet_limits)
        self._store = RecordStore(own, host.entropy, limit=settings.store_bytes)
        self._links = BriefLinks(host, endpoint, connect)
        self._asking = Asking(host, self._links, self._table, self._contact, endpoint.guard)
        pauses = settings.dial_pauses
        pace = None if pauses is None else Pace(pauses[0], host.now(), pauses[1])
        self._searching = Searching(
            host, self.peer, self._asking, self._table, settings.lookups, pace
        )
        self._joining = Joining(
            host,
            own,
            self._table,
            self._asking,
            self._searching,
            links=endpoint.links,
            addresses=book,
            survey_after=0.0 if pace is None else defaults.SURVEY_AFTER,
        )
        self._records = OwnRecords(identity)
        self._publishing = Publishing(
            host,
            self.peer,
            self._records,
            self._table,
            self._asking,
            settings.lookups,
            keep=self._keep,
            settled=self._joining.is_settled,
            pace=pace,
        )
        self._lasting = None
        if settings.folder is not None:
            shelf = Shelf(host, settings.folder)
            self._lasting = Lasting(host, shelf, self._table, self._records, trouble)
        self._answering = Answering(
            host,
            endpoint.link,
            self._table,
            self._store,
            serves=lambda: self._rule.serves,
            on_asker=self._joining.asked_by,
        )
        endpoint.handle("dht.find", self._answering.on_find)
        endpoint.handle("dht.store", self._answering.on_store)
        endpoint.on_link(self._joining.met)
        endpoint.on_link_kept(self._joining.met)

    # Finding.

    async def find(self, key: Key, **how: Any) -> Found:
        """`find_many` of one key."""
        return (await self.find_many([key], **how))[key]

    async def find_many(
        self,
        keys: Sequence[Key],
        *,
        most: int = defaults.K,
        enough: int = 1,
        timeout: float = defaults.FIND_S_ALL,
        kinds: tuple[str, ...] = (),
    ) -> dict[Key, Found]:
        """Records under each key, until those of `enough` authors are known, everybody who should
        have some was asked, or `timeout` seconds are over; `most` of each node that is asked.

        They are verified as records: that what one says is true, its first use must show.
        """
        await trio.lowlevel.checkpoint()
        began = self._host.now()
        gathered = {key: self._gathered(key, kinds) for key in keys}
        lacking = [key for key, found in gathered.items() if found.authors() < enough]
        steps: dict[Key, Sequence[Step]] = {}
        with trio.move_on_after(timeout):
            async with trio.open_nursery() as nursery:
                limit = trio.Semaphore(defaults.LOOKUPS)
                for group in regions(lacking, self._table.radius()):

                    async def look(group: list[Key] = group) -> None:
                        async with limit:
                            await self._look_up(group, gathered, steps, enough, most, kinds)

                    nursery.start_soon(look)
        ended = self._host.now()
        return {
            key: Found(tuple(found.records()), tuple(steps.get(key, ())), began, ended)
            for key, found in gathered.items()
        }

    async def _look_up(
        self,
        group: list[Key],
        gathered: dict[Key, Gathering],
        steps: dict[Key, Sequence[Step]],
        enough: int,
        most: int,
        kinds: tuple[str, ...],
    ) -> None:
        lookup = self._searching.lookup(group, enough=enough, most=most, kinds=kinds)
        try:
            await self._searching.run(lookup)
        finally:  # also what has come when the time is over
            for key in group:
                steps[key] = lookup.steps
                gathered[key].add([*lookup.found(key), *lookup.gone(key)])

    def _gathered(self, key: Key, kinds: tuple[str, ...]) -> Gathering:
        """What is known without asking: of this node's own, of its store, of the second path."""
        found = Gathering()
        now = self._host.now()
        here = [FoundRecord(own.record, 0.0, self.peer) for own in self._records.at(key)]
        here += self._stored(key, now)
        here += self.second_path(key)
        found.add(each for each in here if not kinds or each.record.body.kind in kinds)
        return found

    def _stored(self, key: Key, now: float) -> list[FoundRecord]:
        (stored,) = self._store.find([key], now, most=defaults.FIND_MOST)
        return [FoundRecord(open_record(each.sealed), each.age, self.peer) for each in stored]

    def where(self, peer: PeerId) -> Sequence[Address]:
        """Where a contact of the table is."""
        contact = self._table.contact(peer)
        return () if contact is None else contact.addresses

    async def dial(self, peer: PeerId, addresses: Iterable[Address]) -> Link:
        """A link for some questions, as look-ups have them: where others said that a peer is, a
        host is dialled in vain so often only. Raises DialFailed."""
        return await self._links.to(Contact(peer, addresses), by=("records",))

    # Publishing.

    def publish(
        self,
        body: Body,
        *,
        ttl: int = defaults.TTL,
        lasting: bool = True,
        patient: bool = False,
    ) -> None:
        """Say this, now and again, until it is withdrawn or the same slot says something else.

        A `lasting` record outlives this process; the rest is withdrawn at the next start. A
        `patient` one goes out within some minutes: members learn the same from member records.
        Raises BadRecord where others would refuse it.
        """
        now, wall = self._host.now(), self._host.wall()
        how = {"lasting": lasting, "patient": patient}
        if self._records.publish(body, ttl, **how, now=now, wall=wall):
            self._publishing.wake()

    def withdraw(self, body: Body) -> None:
        """Take back what was said in the slot of this."""
        now, wall = self._host.now(), self._host.wall()
        if self._records.withdraw(body.key, body.slot, now=now, wall=wall):
            self._publishing.wake()

    def own(self) -> list[Body]:
        """What this node says at present."""
        return [own.record.body for own in self._records if not own.record.gone]

    async def flushed(self, timeout: float, *, kept: int | None = None) -> PublishReport:
        """Wait until each record that is not `patient` was announced to all its nodes, or, with
        `kept`, until that number of nodes has acknowledged it."""
        return await self._publishing.flushed(timeout, kept)

    def _keep(self, record: Record) -> None:
        """Of its own records this node is a keeper like others, where it serves."""
        if self._rule.serves:
            self._store.put(
                record,
                sender=self.peer,
                network="",
                age=0.0,
                now=self._host.now(),
                wall=self._host.wall(),
            )

    # Running.

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Join, announce, and keep what lasts, until cancelled; started once what lasted is
        read."""
        if self._lasting is not None:
            self._joining.remembered = await self._lasting.load()
        async with trio.open_nursery() as nursery:
            self._searching.nursery = nursery
            try:
                nursery.start_soon(self._links.run)
                nursery.start_soon(self._joining.run)
                nursery.start_soon(self._publishing.run, nursery)
                nursery.start_soon(self._watch)
                if self._lasting is not None:
                    nursery.start_soon(self._lasting.run)
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._searching.nursery = None

    async def joined(self) -> None:
        """Wait until others are known."""
        await self._joining.joined.wait()

    def network_changed(self) -> None:
        """What could not be reached may be now."""
        self._links.forgive()
        self._records.hurry(self._host.now())
        self._publishing.wake()

    async def _watch(self) -> None:
        """What this node is to others, and which part of the keys is its own."""
        while True:
            if self._rule.decide(self._reachable(), self._servers(), self._host.now()):
                self._joining.look_again()  # and so tell the neighbours
            self._store.radius = min(SPACE, self._table.radius() * defaults.STORE_SLACK)
            while not self._store.expire(self._host.now()):
                await trio.lowlevel.checkpoint()
            if self._records.grown(len(self._table), self._host.now()):
                self._publishing.wake()
            await trio.sleep(defaults.MODE_LOOK)

    def _servers(self) -> int:
        """Contacts that all reach."""
        return sum(1 for contact in self._table.contacts() if contact.networks)

    def _contact(self) -> Contact | None:
        """This node as others should know it; None where it does not serve."""
        if not self._rule.serves:
            return None
        reachable, found = self._reachable(), list(self._addresses())
        if self._shown[:2] == (reachable, found):
            return self._shown[2]  # with what it has computed already
        public = [
            each
            for each in found
            if each.relay is None and nearness_of(each.host) is Nearness.PUBLIC
        ]
        others = [each for each in found if each not in public]
        if not reachable:
            public = []  # they would be dialled in vain
        contact = Contact(self.peer, [*public, *others])
        self._shown = reachable, found, contact
        return contact

    async def leave(self, timeout: float) -> None:
        """Take back what is true only while this node runs, as far as `timeout` seconds allow."""
        for own in list(self._records):
            if not own.lasting and not own.record.gone:
                self.withdraw(own.record.body)
        if len(self._table):
            await self.flushed(timeout)
        if self._lasting is not None:
            await self._lasting.save()

    def view(self) -> dict[str, Any]:
        """What `shoal dht` shows; times in seconds."""
        now, last = self._host.now(), self._publishing.last
        return {
            "mode": self._rule.mode.value,
            "why": self._rule.why,
            "size": self._table.size,
            "contacts": len(self._table),
            "servers": self._servers(),
            "links": self._links.count(),
            "buckets": [
                {"shared": shared, "contacts": contacts, "reachable": reachable, "waiting": waiting}
                for shared, contacts, reachable, waiting in self._table.rows()
            ],
            "stored": {
                "records": len(self._store),
                "bytes": self._store.bytes,
                "limit": self._store.limit,
            },
            "refused": dict(self._answering.refused),
            "disbelieved": dict(self._asking.disbelieved),
            "own": [own.view(now) for own in self._records],
            "walk": None
            if last is None
            else {
                "ended_s": now - last.ended,
                "took_s": last.took,
                "keys": last.keys,
                "messages": last.messages,
            },
        }
