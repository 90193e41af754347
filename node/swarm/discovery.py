"""Connects the node to the DHT: publishes the node's own records there, and adds the facts of
member records to look-ups."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf

import trio
from msgspec.structs import replace

from ...dht.kademlia.presence import Addressing
from ...dht.lookup.foundrecords import FoundRecord
from ...dht.records.key import Key
from ...dht.records.record import BlobBody, Body, PeerBody, Record, ShardBody
from ...dht.service import Dht
from ...dht.settings import DhtSettings
from ...state.directory import Directory
from ...state.membership.record import MemberRecord
from ...transport.address import Address
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.link.link import Link
from ...transport.strategies.dialer import Dialer
from .. import defaults
from ..folder import disk_error
from ..health import Health
from ..models.names import name_bodies
from ..settings.config import DataFolder

MEMBERS_TTL = 600  # seconds for which a member that was lost is remembered (state/defaults.py)


class Discovery:
    """The DHT service of one node, and the records about its addresses, shards and names that it
    publishes."""

    def __init__(
        self,
        host: Host,
        dialer: Dialer,
        directory: Directory,
        health: Health,
        folder: DataFolder,
        *,
        speed: Callable[[ShardBody], float],
    ) -> None:
        self._dialer = dialer
        self._directory = directory
        self._health = health
        self._folder = folder
        self._said: dict[tuple[Key, str], Body] = {}
        self._speeds: dict[ShardBody, float] = {}  # as published
        self.speed = speed
        """Returns the measured speed of a served shard in tokens per second; 0 if unmeasured."""
        self._leaving = False
        self.keys: dict[PeerId, tuple[MemberRecord, frozenset[Key]]] = {}
        self.dht = Dht(
            host,
            dialer.endpoint,
            Addressing(self._connect, self._addresses, dialer.whereabouts.reachable, dialer.book),
            second_path=self.told_by_members,
            settings=DhtSettings(folder=folder.dht, dial_pauses=defaults.DIAL_PAUSES),
            trouble=self.trouble,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Publish this node's records whenever they change, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.dht.run)
            task_status.started()
            version, look_at = -1, -inf
            said: MemberRecord | None = None
            while True:
                with trio.move_on_after(defaults.SPEED_LOOK):
                    version = await self._directory.changed(version)
                own, now = self._directory.own(), trio.current_time()
                if own is not said or now >= look_at:
                    said, look_at = own, now + defaults.SPEED_LOOK
                    self._say()
                with self._dialer.endpoint.guard.around("a member's record"):
                    while not learn(self.keys, self._directory.members(), defaults.MEMBERS_READ):
                        await trio.lowlevel.checkpoint()
                await trio.sleep(defaults.SAY_PAUSE)

    async def leave(self) -> None:
        """Withdraw the records that describe the running process, within LEAVE_TIME seconds."""
        self._leaving = True
        await self.dht.leave(defaults.LEAVE_TIME)

    def _say(self) -> None:
        """Publish this node's current records, and withdraw those that are no longer true."""
        if self._leaving:
            return
        own = self._directory.own()
        said = [self.measured(body) for body in bodies(own) if not _is_hearsay(body)]
        wanted = {(body.key, body.slot): body for body in said}
        for slot, body in self._said.items():
            if slot not in wanted:
                self.dht.withdraw(body)
        for body in wanted.values():
            self.dht.publish(body, lasting=False, patient=True)
        self._said = wanted

    def measured(self, body: Body) -> Body:
        """Return a copy of a shard's body with the measured speed, or any other body unchanged.

        The published speed only changes if the measured one differs by more than SPEED_CHANGE.
        """
        if not isinstance(body, ShardBody):
            return body
        shard = replace(body, speed=0.0)
        speed, said = self.speed(shard), self._speeds.get(shard, 0.0)
        if abs(speed - said) > defaults.SPEED_CHANGE * said:
            self._speeds[shard] = said = float(f"{speed:.2g}")
        return replace(body, speed=said)

    # Callbacks of the DHT.

    async def _connect(self, peer: PeerId, addresses: Sequence[Address]) -> Link:
        return await self._dialer.ask(peer, addresses, timeout=defaults.ASK_TIMEOUT)

    def _addresses(self) -> list[Address]:
        return [Address.parse(text) for text in self._directory.own().addresses]

    def trouble(self, error: OSError | None) -> None:
        if error is None:
            self._health.clear("dht")
        else:
            trouble = disk_error(self._folder, error)
            self._health.report("dht", trouble.message, hint=trouble.hint)

    # The second path.

    def told_by_members(self, key: Key) -> Iterator[FoundRecord]:
        """Yield the facts about a DHT key that member records contain, in the form of DHT records.
        The DHT uses them as a second source for look-ups."""
        members = self._directory.members()
        learn(self.keys, members, defaults.MEMBERS_READ)
        for peer, (record, keys) in self.keys.items():
            if key in keys and members.get(peer) is record:
                yield from (_found(record, body) for body in bodies(record) if body.key == key)


def learn(
    known: dict[PeerId, tuple[MemberRecord, frozenset[Key]]],
    members: Mapping[PeerId, MemberRecord],
    most: int,
) -> bool:
    """Compute the DHT keys of the facts in members' records, and return whether all records are
    done. The results are added to `known`, which maps a member to (its record, the keys).

    At most `most` new records are processed in one call, because a single record can take hundreds
    of hashes. Members that have left are removed.
    """
    for peer in known.keys() - members.keys():
        del known[peer]
    for peer, record in members.items():
        if peer not in known or known[peer][0] is not record:
            if not most:
                return False
            most -= 1
            known[peer] = record, frozenset(body.key for body in bodies(record))
    return True


def bodies(member: MemberRecord) -> Iterable[Body]:
    """Yield the facts of a member record as bodies of DHT records."""
    yield PeerBody(member.peer, member.addresses[: defaults.PEER_ADDRESSES])
    for shard in member.shards[: defaults.SHARD_RECORDS]:
        yield ShardBody(
            shard.root,
            shard.start,
            shard.stop,
            shard.embedding,
            shard.head,
            shard.dtype,
            speed=0.0,
        )
    yield from name_bodies(member.models)
    for root in member.stored:
        yield BlobBody(root, size=0, chunks=1, ranges=())


def _is_hearsay(body: Body) -> bool:
    """Return whether a fact from a member record is less exact than the member's own DHT record.

    A member record names the roots of which the member has chunks, but not which chunks. The DHT
    records of that member do.
    """
    return isinstance(body, BlobBody)


def _found(member: MemberRecord, body: Body) -> FoundRecord:
    made = 1 if _is_hearsay(body) else member.seq  # the author's own record takes precedence
    record = Record(member.peer, body, made, MEMBERS_TTL, False, body.key, body.slot, sealed=b"")
    return FoundRecord(record, 0.0, member.peer)
