"""A thousand light nodes of one key space, over the links and latencies of home volunteers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Final

from shoal.dht.lookup.lookup import Lookup
from shoal.dht.lookup.query import LookupSettings
from shoal.dht.publishing.walk import Walk
from shoal.dht.records.contact import Contact
from shoal.dht.records.key import KEY_BYTES, Key, key_at, node_key, point
from shoal.dht.records.record import BlobBody, Record, open_record, seal_record
from shoal.netsim.light import LightHost
from shoal.netsim.network.packet import Addr
from shoal.netsim.population import latency, profiles
from shoal.netsim.population.mix import draw, load
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.identity import Identity, PeerId, peer_id_of

from .ringnode import WALL, Liar, RingNode

PATIENCE_S: Final = 60.0
"""Seconds until a look-up counts as failed."""
KNOWN: Final = 300
"""Random nodes that a settled node has met so far; its neighbours come on top."""
NEIGHBOURS: Final = 64
DENSITIES: Final = 40
GHOSTS: Final = 40_000
"""Contacts that the liars have made up: 40 per node."""
FORGERS: Final = 1_000_000
"""The first of the liars' authors."""
AUTHORS: Final = 16
"""Authors that each liar makes up."""


@dataclass(slots=True)
class Got:
    """Result of one look-up."""

    found: bool
    seconds: float
    hops: int  # to the node that had the record
    queries: int


class Ring:
    """The nodes by name, and their measurements."""

    def __init__(
        self,
        seed: int,
        *,
        settings: LookupSettings | None = None,
        subnet_limits: bool = True,
        spread: bool = True,
    ) -> None:
        self.world = World(seed, latency=latency.matrix())
        self.random = self.world.streams.get("", "ring")
        self.nodes: list[RingNode] = []
        self.liars: list[Liar] = []
        self.claimed: dict[Key, int] = {}
        """Numbers, by key, of the blobs that the liars' made-up authors claim to provide."""
        self.hosts: dict[PeerId, LightHost] = {}
        self._where: dict[PeerId, Addr] = {}
        self._settings = settings or LookupSettings()
        self._subnet_limits = subnet_limits
        self._spread = spread

    @property
    def now(self) -> float:
        return self.world.events.now

    def advance(self, seconds: float) -> None:
        self.world.advance(self.now + seconds)

    # Members of the ring.

    def add(
        self,
        name: str,
        *,
        liar: bool = False,
        key: bytes | None = None,
        network: str = "",
    ) -> RingNode:
        """Add a node at a random volunteer's home.

        `key`: its public key. `network`: the first three bytes of its address, to put nodes into
        one subnet.
        """
        random = self.world.streams.get(name, "ring")
        peer = peer_id_of(key or random.randbytes(KEY_BYTES))
        kind: Callable[..., RingNode] = Liar if liar else RingNode
        drawn = draw(load(), self.world.streams.get(name, "population"), latency.matrix())
        place = self.world.public_address()
        shown = f"{network}.{random.randrange(1, 255)}" if network else _spread(len(self.hosts))
        node = kind(
            Contact(peer, [Address(shown, 4001)]),
            random,
            self._where,
            settings=self._settings,
            subnet_limits=self._subnet_limits,
            spread=self._spread,
        )
        host = self.world.light(
            name, node, address=place, link=profiles.link(drawn.link), site=drawn.site
        )
        self._where[peer] = host.address
        self.hosts[peer] = host
        if isinstance(node, Liar):
            self.liars.append(node)
        else:
            self.nodes.append(node)
        return node

    def everybody(self) -> list[RingNode]:
        return [*self.nodes, *self.liars]

    def up(self) -> list[RingNode]:
        """Return the honest nodes that are running."""
        return [node for node in self.nodes if self.hosts[node.contact.peer].up]

    def conspire(self, *, puppets: bool = False) -> None:
        """Let the liars name each other and a common set of ghosts.

        With `puppets` two in three ghosts are further identities on the liars' machines. Each liar
        claims to provide the blobs that are `claimed`.
        """
        kin = [liar.contact for liar in self.liars]
        ghosts = [
            Contact(peer, kin[number % len(kin)].addresses if _alive(number, puppets) else [lost])
            for number, (peer, lost) in enumerate(_ghosts())
        ]
        if puppets:
            for number, ghost in enumerate(ghosts):
                if _alive(number, puppets):
                    self._where[ghost.peer] = self._where[kin[number % len(kin)].peer]
        ghosts.sort(key=lambda contact: contact.point)
        for number, liar in enumerate(self.liars):
            liar.kin = [] if puppets else kin
            liar.ghosts = ghosts
            liar.forge = partial(self._forged, FORGERS + number * AUTHORS)

    def _forged(self, first: int, key: Key) -> list[bytes]:
        number = self.claimed.get(key)
        authors = () if number is None else range(first, first + AUTHORS)
        return [blob_record(number or 0, author=author).sealed for author in authors]

    # How the nodes know each other.

    def join(self, pace: float = 0.25) -> None:
        """Let the nodes join one after the other through three that are present, until all is
        idle.
        """
        there: list[Contact] = []
        for node in self.everybody():
            known = self.random.sample(there, min(3, len(there)))
            self.enter(node, known)
            there.append(node.contact)
            self.advance(pace)
        self.advance(PATIENCE_S)

    def enter(self, node: RingNode, known: Sequence[Contact]) -> None:
        """Let a node begin to join through the `known` contacts."""
        self.call(node, lambda: node.join(known))

    def settle(self, *, first: Iterable[RingNode] = ()) -> None:
        """Fill the tables as they are after days: each node has met its neighbours and many others,
        in random order. All nodes have met the nodes in `first` before the others.
        """
        everybody = [node.contact for node in self.everybody()]
        early = [node.contact for node in first]
        keys = [key_at(self.random.getrandbits(256)) for _ in range(DENSITIES)]
        around = [(key, _nearest(everybody, key, 40)) for key in keys]
        for node in self.everybody():
            met = [*_nearest(everybody, node.contact.key, NEIGHBOURS)]
            met += self.random.sample(everybody, min(KNOWN, len(everybody)))
            self.random.shuffle(met)
            for contact in (*early, *met):
                node.table.answered(contact, self.now)
            for key, listed in self.random.sample(around, 15):
                node.table.sample(key, listed)

    def call(self, node: RingNode, action: Callable[[], None]) -> None:
        """Call `action` on a node at the present, and send what results."""
        node.now = self.now
        action()
        host = self.hosts[node.contact.peer]
        for data, to in node.take():
            host.send(data, to)
        host.arm()

    # Actions of nodes.

    def publish(self, node: RingNode, records: Sequence[Record], patience: float = 900.0) -> Walk:
        """Publish records in one walk and wait until it is done. Raises TimeoutError."""
        ended: list[Walk] = []
        began = self.now
        self.begin(node, records, ended)
        while not ended:
            if self.now > began + patience:
                raise TimeoutError(f"not published within {patience} s")
            self.advance(0.25)
        return ended[0]

    def begin(self, node: RingNode, records: Sequence[Record], ended: list[Walk]) -> None:
        """Begin a walk; append it to `ended` when it is done."""
        self.call(node, lambda: node.publish(records, lambda walk, now: ended.append(walk)))

    def crash(self, share: float, spared: Iterable[RingNode] = ()) -> None:
        """Power off this share of the honest nodes, drawn at random."""
        kept = set(map(id, spared))
        there = [node for node in self.up() if id(node) not in kept]
        for node in self.random.sample(there, round(share * len(self.nodes))):
            self.hosts[node.contact.peer].crash()

    def get_all(
        self,
        asked: Sequence[tuple[RingNode, Key]],
        pace: float = 0.05,
        *,
        enough: int = 1,
        within: float = PATIENCE_S,
    ) -> list[Got]:
        """Run look-ups, beginning one every `pace` seconds; return their results."""
        results: dict[int, Got] = {}
        for number, (node, key) in enumerate(asked):
            self.get(node, key, number, results, enough=enough, within=within)
            self.advance(pace)
        self.advance(PATIENCE_S)
        return [results[number] for number in range(len(asked))]

    def get(
        self,
        node: RingNode,
        key: Key,
        number: int,
        results: dict[int, Got],
        *,
        enough: int = 1,
        within: float = PATIENCE_S,
    ) -> None:
        """Begin a look-up of `enough` authors; put its result into `results` when it ends.

        Records that liars forged, or that come after `within` seconds, count as not found.
        """
        began = self.now
        results[number] = Got(False, PATIENCE_S, 0, 0)

        def ended(lookup: Lookup, now: float) -> None:
            hops = [step.hop for step in lookup.steps if step.outcome == "records"]
            forgers = self._forgers()
            by = {each.by for each in lookup.found(key) if each.record.author not in forgers}
            found = any(
                step.contact.peer in by and (step.answered or now) - began <= within
                for step in lookup.steps
            )
            results[number] = Got(found, now - began, min(hops, default=0), len(lookup.steps))

        self.call(node, lambda: node.get(key, ended, enough))

    def _forgers(self) -> set[PeerId]:
        return {_author(FORGERS + number).peer for number in range(len(self.liars) * AUTHORS)}


def _nearest(contacts: Iterable[Contact], key: Key, count: int) -> list[Contact]:
    at = point(key)
    return sorted(contacts, key=lambda contact: contact.point ^ at)[:count]


def _spread(number: int) -> str:
    """Return an address in a network of its own."""
    return f"{30 + number // 65536}.{number // 256 % 256}.{number % 256}.7"


@cache
def _author(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32))


@cache
def _ghosts() -> list[tuple[PeerId, Address]]:
    """Return nodes that do not exist, each in a network of its own."""
    random = Random(GHOSTS)
    return [
        (peer_id_of(random.randbytes(KEY_BYTES)), Address(_spread(number), 4001))
        for number in range(GHOSTS, 2 * GHOSTS)
    ]


def _alive(number: int, puppets: bool) -> bool:
    return puppets and number % 3 > 0


@cache
def blob_record(number: int, *, author: int = 1, now: float = 0.0, ttl: int = 7_200) -> Record:
    """Return a record of a blob, made at an instant of the simulation."""
    body = BlobBody(f"{number:064x}", 2**20, 1)
    made = int((WALL + now) * 1000)
    return open_record(seal_record(_author(author), body, made=made, ttl=ttl))


def ground(random: Random, key: Key, count: int, bits: int) -> list[bytes]:
    """Return public keys whose nodes share `bits` leading bits with a key, found by trial."""
    found: list[bytes] = []
    while len(found) < count:
        public = random.randbytes(KEY_BYTES)
        if (point(node_key(peer_id_of(public))) ^ point(key)) >> (256 - bits) == 0:
            found.append(public)
    return found
