"""`Dht`: finds records of other nodes, and publishes records of this node.

This module connects the table, the record store, the look-ups and the walks, none of which does
I/O, to trio. Once a `Dht` is constructed, it answers requests of peers. `run` joins the network,
announces this node's records, and saves the state. Spec: docs/spec/dht.md.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import trio

from ..transport.address import Address
from ..transport.dial.endpoint import Endpoint
from ..transport.host.seam import Host
from ..transport.identity import PeerId
from ..transport.link.link import Link
from . import defaults
from .figures import AnnouncementFigures, BucketFigures, DhtFigures, StoredFigures
from .finding import FindingResult, Gathering, regions
from .kademlia.answering import DhtHandlers
from .kademlia.presence import Addressing, Presence
from .kademlia.recordstore import RecordStore
from .lookup.candidate import LookupStep
from .lookup.client import DhtClient
from .lookup.foundrecords import FoundRecord
from .lookup.joining import Joining
from .lookup.searching import Searching
from .persistence import DhtFiles, Persistence, Trouble
from .publishing.own import OwnRecords
from .publishing.publishing import Publishing, PublishReport
from .records.contact import Contact
from .records.key import SPACE, Key, node_key
from .records.record import Body, Record, open_record
from .settings import DhtSettings


class Dht:
    """The DHT of one node.

    `second_path` returns records of a key that are known from another source than the DHT, such as
    from members. `trouble` is called with disk errors.
    """

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        addressing: Addressing,
        *,
        second_path: Callable[[Key], Iterable[FoundRecord]] = lambda key: (),
        settings: DhtSettings | None = None,
        trouble: Trouble = lambda error: None,
    ) -> None:
        settings = settings or DhtSettings()
        self.peer = endpoint.peer
        self._host = host
        self._second_path = second_path
        self.presence = Presence(self.peer, addressing, host.now())
        """Whether this node serves, and the contact that it shows to others."""
        client = DhtClient(host, endpoint, self.presence, settings)
        self.table, self.links, self.asking = client.table, client.links, client.asking
        """The routing table; the brief links; what sends requests over them."""
        self.store = RecordStore(node_key(self.peer), host.entropy, limit=settings.store_bytes)
        """The records that this node stores for others."""
        self.searching = Searching(client)
        self._joining = Joining(
            client, self.searching, links=endpoint.links, addresses=addressing.book
        )
        self._records = OwnRecords(endpoint.identity)
        self._publishing = Publishing(
            client, self._records, keep=self._keep, settled=self._joining.is_settled
        )
        self._persistence = None
        if settings.folder is not None:
            dht_files = DhtFiles(host, settings.folder)
            self._persistence = Persistence(host, dht_files, self.table, self._records, trouble)
        serves, asked = self.presence.serves, self._joining.on_request
        self.answering = DhtHandlers(
            host, endpoint, self.table, self.store, serves=serves, on_asker=asked
        )
        """What answers the requests of peers."""
        endpoint.on_link(self._joining.on_linked)
        endpoint.on_link_lasting(self._joining.on_linked)

    # Finding records.

    async def find(
        self,
        key: Key,
        *,
        most: int = defaults.K,
        enough: int = 1,
        timeout: float = defaults.FIND_S_ALL,
        kinds: tuple[str, ...] = (),
    ) -> FindingResult:
        """Find the records under one key, as `find_many` does."""
        found = await self.find_many([key], most=most, enough=enough, timeout=timeout, kinds=kinds)
        return found[key]

    async def find_many(
        self,
        keys: Sequence[Key],
        *,
        most: int = defaults.K,
        enough: int = 1,
        timeout: float = defaults.FIND_S_ALL,
        kinds: tuple[str, ...] = (),
    ) -> dict[Key, FindingResult]:
        """Find the records under each key, and return them with the trace of the look-ups.

        The look-up of a key ends when records of `enough` authors are known, when there is no other
        node to ask, or after `timeout` seconds. Each node is asked for up to `most` records per
        key, and only for those of the given `kinds` (all if empty). The signatures of the records
        are verified. Whether their statements are true shows only when they are used.
        """
        await trio.lowlevel.checkpoint()
        began = self._host.now()
        gathered = {key: self._gathered(key, kinds) for key in keys}
        lacking = [key for key, found in gathered.items() if found.authors() < enough]
        steps: dict[Key, Sequence[LookupStep]] = {}
        with trio.move_on_after(timeout):
            async with trio.open_nursery() as nursery:
                limit = trio.Semaphore(defaults.LOOKUPS)
                for group in regions(lacking, self.table.radius()):

                    async def look(group: list[Key] = group) -> None:
                        async with limit:
                            await self._look_up(group, gathered, steps, enough, most, kinds)

                    nursery.start_soon(look)
        ended = self._host.now()
        return {
            key: FindingResult(tuple(found.records()), tuple(steps.get(key, ())), began, ended)
            for key, found in gathered.items()
        }

    async def _look_up(
        self,
        group: list[Key],
        gathered: dict[Key, Gathering],
        steps: dict[Key, Sequence[LookupStep]],
        enough: int,
        most: int,
        kinds: tuple[str, ...],
    ) -> None:
        """Run the look-up of a group of keys.

        Adds the records that it finds to `gathered`, and its trace to `steps`.
        """
        lookup = self.searching.lookup(group, enough=enough, most=most, kinds=kinds)
        try:
            await self.searching.run(lookup)
        finally:  # what has arrived counts even if the look-up timed out
            for key in group:
                steps[key] = lookup.steps
                gathered[key].add([*lookup.found(key), *lookup.gone(key)])

    def _gathered(self, key: Key, kinds: tuple[str, ...]) -> Gathering:
        """Return the records that are known on this node, of the given kinds.

        These are its own records, those in its record store, and those of the second path.
        """
        found = Gathering()
        now = self._host.now()
        here = [FoundRecord(own.record, 0.0, self.peer) for own in self._records.at(key)]
        here += self._stored(key, now)
        here += self._second_path(key)
        found.add(each for each in here if not kinds or each.record.body.kind in kinds)
        return found

    def _stored(self, key: Key, now: float) -> list[FoundRecord]:
        """Return the records under a key that this node stores for other authors."""
        (stored,) = self.store.find([key], now, most=defaults.FIND_MOST)
        return [FoundRecord(open_record(each.sealed), each.age, self.peer) for each in stored]

    def where(self, peer: PeerId) -> Sequence[Address]:
        """Return the addresses of a peer in the routing table.

        Empty if the table does not have it.
        """
        contact = self.table.contact(peer)
        return () if contact is None else contact.addresses

    async def dial(self, peer: PeerId, addresses: Iterable[Address]) -> Link:
        """Return a link for a few requests to a peer. `addresses` come from records.

        If there is no link, the addresses are dialled. Failed dials of a public host are
        rate-limited. Raises DialFailed if no address answers.
        """
        return await self.links.to(Contact(peer, addresses), by=("records",))

    # Publishing records.

    def publish(
        self,
        body: Body,
        *,
        ttl: int = defaults.TTL,
        lasting: bool = True,
        patient: bool = False,
    ) -> None:
        """Announce a record repeatedly, until it is withdrawn or replaced in its slot.

        A `lasting` record is announced again after a restart; any other is withdrawn at the next
        start. A `patient` record is announced within some minutes, because members learn the same
        fact from member records. `ttl` is in seconds. Raises BadRecord if other nodes would reject
        the record.
        """
        now, wall = self._host.now(), self._host.wall()
        how = {"lasting": lasting, "patient": patient}
        if self._records.publish(body, ttl, **how, now=now, wall=wall):
            self._publishing.wake()

    def withdraw(self, body: Body) -> None:
        """Withdraw the record in the slot of `body`, if there is one."""
        now, wall = self._host.now(), self._host.wall()
        if self._records.withdraw(body.key, body.slot, now=now, wall=wall):
            self._publishing.wake()

    def own(self) -> list[Body]:
        """Return the records that this node is publishing, without withdrawn ones."""
        return [own.record.body for own in self._records if not own.record.gone]

    async def flushed(self, timeout: float, *, kept: int | None = None) -> PublishReport:
        """Wait until every new record that is not `patient` has been announced.

        A record has been announced when all its nodes have answered, or, if `kept` is given, when
        this number of nodes has acknowledged it. Waits for at most `timeout` seconds.
        """
        return await self._publishing.flushed(timeout, kept)

    def _keep(self, record: Record) -> None:
        """Add one of this node's own records to its record store, if this node serves."""
        if self.presence.serves():
            self.store.put(
                record,
                sender=self.peer,
                network="",
                age=0.0,
                now=self._host.now(),
                wall=self._host.wall(),
            )

    # Running.

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Join the network, announce records and save the state, until cancelled.

        Calls `task_status.started` once the saved state is loaded.
        """
        remembered = () if self._persistence is None else await self._persistence.load()
        async with trio.open_nursery() as nursery:
            with self.searching.tasks.run_in(nursery):
                nursery.start_soon(self._joining.run, remembered)
                repeat = partial(self.asking.guard.start_repeated, nursery)
                repeat("brief links", self.links.run)
                repeat("records to announce", self._publishing.run, nursery)
                repeat("contacts that serve", self._watch)
                if self._persistence is not None:
                    nursery.start_soon(self._persistence.run)
                task_status.started()
                await trio.sleep_forever()

    async def joined(self) -> None:
        """Wait until this node knows its neighbours in the key space."""
        await self._joining.joined.wait()

    def network_changed(self) -> None:
        """Retry failed dials and announcements at once, because this node's network has changed."""
        self.links.clear_backoffs()
        self._records.hurry(self._host.now())
        self._publishing.wake()

    async def _watch(self) -> None:
        """Update the mode and the region of the record store, and drop expired records."""
        while True:
            if self.presence.decide(self._servers(), self._host.now()):
                self._joining.look_again()  # the look-up also tells the neighbours the new mode
            self.store.radius = min(SPACE, self.table.radius() * defaults.STORE_SLACK)
            while not self.store.expire(self._host.now()):
                await trio.lowlevel.checkpoint()
            if self._records.grown(len(self.table), self._host.now()):
                self._publishing.wake()
            await trio.sleep(defaults.MODE_LOOK)

    def _servers(self) -> int:
        """Return the number of contacts that are publicly reachable."""
        return sum(1 for contact in self.table.contacts() if contact.networks)

    async def leave(self, timeout: float) -> None:
        """Withdraw the records that are true only while this node runs, and save the state.

        Waits at most `timeout` seconds for nodes to acknowledge the withdrawals.
        """
        for own in list(self._records):
            if not own.lasting and not own.record.gone:
                self.withdraw(own.record.body)
        if len(self.table):
            await self.flushed(timeout)
        if self._persistence is not None:
            await self._persistence.save()

    def view(self) -> DhtFigures:
        """Return what `shoal dht` shows."""
        now, last = self._host.now(), self._publishing.last
        return DhtFigures(
            mode=self.presence.rule.mode.value,
            why=self.presence.rule.why,
            size=self.table.size,
            contacts=len(self.table),
            servers=self._servers(),
            links=self.links.count(),
            buckets=tuple(BucketFigures(*row) for row in self.table.rows()),
            stored=StoredFigures(len(self.store), self.store.bytes, self.store.limit),
            refused=dict(self.answering.refused),
            disbelieved=dict(self.asking.disbelieved),
            own=tuple(own.view(now) for own in self._records),
            walk=None
            if last is None
            else AnnouncementFigures(
                ended_s=now - last.ended,
                took_s=last.took,
                keys=last.keys,
                messages=last.messages,
            ),
        )
