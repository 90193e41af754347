"""kvindex: finds the providers of the longest prefix of a prompt."""

from collections import Counter
from typing import Any

import pytest
import trio

from shoal.dht import defaults
from shoal.dht.finding import FindingResult
from shoal.dht.kv.chain import Chain
from shoal.dht.kv.index import KvFound, KvIndex, KvProvider
from shoal.dht.kv.search import PROOF, SHORT, PrefixSearch
from shoal.dht.lookup.foundrecords import FoundRecord
from shoal.dht.records.key import Key
from shoal.dht.records.record import Body
from shoal.transport.errors import CallRefused, DialFailed
from shoal.transport.host.real import RealHost
from shoal.transport.identity import PeerId
from shoal.transport.link.calls import Answer, Reply

from ..chains import LAYERS, chain, forked
from ..network import Network, Wire
from ..nodes import identity, record

HOST = RealHost()


class Board:
    """Records of all authors, found at once."""

    def __init__(self) -> None:
        self.bodies: dict[tuple[int, Key, str], Body] = {}
        self.finds = 0

    def of(self, author: int) -> "Pen":
        return Pen(self, author)


class Pen:
    """Publishes records of one author on a board."""

    def __init__(self, board: Board, author: int) -> None:
        self.board = board
        self.author = author
        self.written = 0

    async def find(self, key: Key, **how: Any) -> FindingResult:
        self.board.finds += 1
        return FindingResult(
            tuple(
                FoundRecord(record(body, author), 0.0, PeerId("keeper"))
                for (author, under, _), body in self.board.bodies.items()
                if under == key
            )
        )

    def publish(self, body: Body, *, ttl: int = 60, lasting: bool = True) -> None:
        assert not lasting
        self.written += 1
        self.board.bodies[self.author, body.key, body.slot] = body

    def withdraw(self, body: Body) -> None:
        del self.board.bodies[self.author, body.key, body.slot]


class Swarm:
    """Nodes with an index each; node 0 searches."""

    def __init__(self, count: int) -> None:
        self.board = Board()
        self.network = Network()
        self.peers = [identity(number).peer for number in range(count)]
        self.nodes = [self.network.node(peer) for peer in self.peers]
        self.indexes = [self.index(number) for number in range(count)]
        self.dialled: Counter[PeerId] = Counter()

    def index(self, number: int) -> KvIndex:
        node = self.nodes[number]

        async def connect(peer: PeerId) -> Any:
            self.dialled[peer] += 1
            link: Wire | None = node.link(peer)
            if link is None:
                raise DialFailed("unreachable", "no reply")
            return link

        return KvIndex(HOST, node, self.board.of(number), connect=connect)

    async def announced(self, **chains: Chain) -> None:
        """Let nodes announce chains (`n3=chain` for node 3); return once they are published."""
        async with trio.open_nursery() as nursery:
            for name, held in chains.items():
                index = self.indexes[int(name[1:])]
                await nursery.start(index.run)
                index.announce(held, LAYERS)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    async def longest(self, wanted: Chain, layers: tuple[int, int] = LAYERS) -> KvFound:
        return await self.indexes[0].longest(wanted, layers)

    def asked(self) -> int:
        return sum(node.served["kv.have"] for node in self.nodes)


@pytest.mark.trio
async def test_the_longest_prefix_is_found(autojump_clock: trio.testing.MockClock) -> None:
    swarm, wanted = Swarm(5), chain(512)
    await swarm.announced(
        n1=chain(100), n2=forked(wanted, 317, 60, seed=1), n3=wanted, n4=chain(90, seed=7)
    )
    swarm.network.down.add(swarm.peers[3])
    found = await swarm.longest(wanted)
    assert found.providers == (KvProvider(swarm.peers[2], 317), KvProvider(swarm.peers[1], 100))
    assert swarm.board.finds == 1 and found.rounds <= 3
    assert swarm.dialled[swarm.peers[4]] == 0, "its chain has another first chunk"


@pytest.mark.trio
async def test_chains_on_this_node_count_too(autojump_clock: trio.testing.MockClock) -> None:
    swarm = Swarm(2)
    await swarm.announced(n0=chain(7), n1=chain(5))
    found = await swarm.longest(chain(9))
    assert found.providers == (KvProvider(swarm.peers[0], 7), KvProvider(swarm.peers[1], 5))


@pytest.mark.trio
async def test_providers_must_have_the_layers(autojump_clock: trio.testing.MockClock) -> None:
    swarm = Swarm(2)
    await swarm.announced(n1=chain(5))
    assert (await swarm.longest(chain(9), (2, 8))).providers
    assert not (await swarm.longest(chain(9), (2, 9))).providers
    assert swarm.asked() == 1, "its record shows the layers"


@pytest.mark.trio
async def test_withdrawing_a_chain(autojump_clock: trio.testing.MockClock) -> None:
    swarm = Swarm(2)
    index, pen = swarm.indexes[1], swarm.board
    async with trio.open_nursery() as nursery:
        await nursery.start(index.run)
        index.announce(chain(4), LAYERS)
        await trio.sleep(2)
        assert len(pen.bodies) == 1
        index.withdraw(chain(4))
        await trio.sleep(2)
        assert not pen.bodies
        nursery.cancel_scope.cancel()
    assert not (await swarm.longest(chain(4))).providers


@pytest.mark.trio
async def test_many_changes_are_published_slowly(autojump_clock: trio.testing.MockClock) -> None:
    swarm = Swarm(1)
    index = swarm.indexes[0]
    async with trio.open_nursery() as nursery:
        await nursery.start(index.run)
        for seed in range(20):
            index.announce(chain(2, seed=seed), LAYERS)
        await trio.sleep(0.5)
        assert len(swarm.board.bodies) == defaults.KV_SAID
        await trio.sleep(2)
        assert len(swarm.board.bodies) == 20
        nursery.cancel_scope.cancel()


def claimed(asked: int) -> Reply:
    return Reply({}, b"\7" * asked * PROOF)


@pytest.mark.trio
async def test_a_liar_is_dropped(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has copied another provider's record, and claims whatever it is asked for."""

    def lie(method: str, answer: Answer) -> Answer:
        assert isinstance(answer, Reply)
        return claimed(len(answer.payload) // PROOF) if method == "kv.have" else answer

    swarm, wanted = Swarm(3), chain(512)
    await swarm.announced(n1=wanted, n2=chain(40))
    swarm.nodes[1].twist = lie
    assert (await swarm.longest(wanted)).providers == (KvProvider(swarm.peers[2], 40),)
    asked = swarm.asked()
    assert (await swarm.longest(wanted)).providers == (KvProvider(swarm.peers[2], 40),)
    assert swarm.asked() == asked + 1, "it is not asked again"

    # Twin: without the proofs it is believed.
    def believed(self: PrefixSearch, proofs: bytes) -> bool:
        self.rounds, self.held = 1, self._most
        return True

    monkeypatch.setattr(PrefixSearch, "answered", believed)
    swarm.indexes[0] = swarm.index(0)
    assert (await swarm.longest(wanted)).providers[0].peer == swarm.peers[1]


@pytest.mark.trio
async def test_a_provider_that_fails_at_use_is_distrusted_for_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    swarm = Swarm(3)
    await swarm.announced(n1=chain(9), n2=chain(4))
    index = swarm.indexes[0]
    assert (await index.longest(chain(9), LAYERS)).providers[0].peer == swarm.peers[1]
    index.refute(swarm.peers[1])
    assert [one.peer for one in (await index.longest(chain(9), LAYERS)).providers] == [
        swarm.peers[2]
    ]
    index.liars[swarm.peers[1]] = HOST.now() - 1
    assert (await index.longest(chain(9), LAYERS)).providers[0].peer == swarm.peers[1]


@pytest.mark.trio
async def test_the_number_of_remembered_liars_is_limited() -> None:
    swarm = Swarm(1)
    for number in range(defaults.KV_LIARS + 10):
        swarm.indexes[0].refute(PeerId(f"p{number}"))
    assert len(swarm.indexes[0].liars) == defaults.KV_LIARS


@pytest.mark.trio
async def test_a_flood_of_claims(autojump_clock: trio.testing.MockClock) -> None:
    """Many authors make huge claims: a limited number of them is asked."""
    swarm, wanted = Swarm(1), chain(512)
    for author in range(100, 160):
        body = wanted.body(LAYERS)
        huge = type(body)(
            body.root, body.precision, "", body.salt, body.first, "0" * 64,
            defaults.BLOCKS_LIMIT, LAYERS,
        )  # fmt: skip
        swarm.board.of(author).publish(huge, lasting=False)
    assert not (await swarm.longest(wanted)).providers
    assert sum(swarm.dialled.values()) == defaults.KV_PROVIDERS


BAD: list[tuple[Any, bytes]] = [
    (None, bytes(8)),
    ([0], bytes(8)),
    ([0, 0], bytes(8)),
    ([4, 2], bytes(8)),
    ([0, True], bytes(8)),
    ([0, 1.0], bytes(8)),
    ([-1, 4], bytes(8)),
    ([0, 10**6], bytes(8)),
    ([0, 8], b""),
    ([0, 8], bytes(7)),
    ([0, 8], bytes(8 * 65)),
]


@pytest.mark.trio
@pytest.mark.parametrize(("layers", "payload"), BAD)
async def test_invalid_requests(layers: Any, payload: bytes) -> None:
    swarm = Swarm(2)
    link = swarm.nodes[0].link(swarm.peers[1])
    assert link is not None
    with pytest.raises(CallRefused) as raised:
        await link.call("kv.have", {"layers": layers}, payload, timeout=1.0)
    assert raised.value.code == "bad-request"


@pytest.mark.trio
async def test_too_many_requests(autojump_clock: trio.testing.MockClock) -> None:
    swarm = Swarm(3)
    link, other = (swarm.nodes[n].link(swarm.peers[1]) for n in (0, 2))
    assert link is not None and other is not None
    codes = []
    for _ in range(int(defaults.KV_RATE[0]) * 2):
        try:
            await link.call("kv.have", {"layers": [0, 8]}, bytes(8), timeout=1.0)
        except CallRefused as error:
            codes.append(error.code)
    assert set(codes) == {"busy"}
    await other.call("kv.have", {"layers": [0, 8]}, bytes(8), timeout=1.0)


@pytest.mark.trio
async def test_without_the_names_a_hit_looks_like_a_miss(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A peer that knows prompt and model, but not the gateway's secret, learns nothing. Twin: with
    the names it sees the hit. (Style_reliability B4 row 18.)"""
    swarm = Swarm(2)
    for seed in range(50):
        swarm.indexes[1].announce(chain(6, seed=seed), LAYERS)
    link = swarm.nodes[0].link(swarm.peers[1])
    assert link is not None

    async def seen(seed: int) -> bytes:
        question = b"".join(tag[:SHORT] for tag in chain(6, seed).tags)
        while True:
            try:
                reply = await link.call("kv.have", {"layers": [0, 8]}, question, timeout=1.0)
            except CallRefused:
                await trio.sleep(1)
            else:
                return bytes(reply.payload)

    # The names that another secret makes of the same prompts.
    outside = {await seen(1000 + seed) for seed in range(100)}
    assert outside == {bytes(6 * PROOF)}, "50 hits and 50 misses look the same"
    inside = [any(await seen(seed)) for seed in range(100)]
    assert inside == [True] * 50 + [False] * 50


@pytest.mark.trio
async def test_likely_peers_are_asked_before_the_look_up_ends(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm, wanted = Swarm(4), chain(20)
    for number, length in ((1, 20), (2, 7)):
        swarm.indexes[number].announce(chain(length), LAYERS)

    async def never(self: Pen, key: Key, **how: Any) -> FindingResult:
        await trio.sleep(how["timeout"])
        return FindingResult(())

    monkeypatch.setattr(Pen, "find", never)
    began = trio.current_time()
    find = swarm.indexes[0].longest
    found = await find(wanted, LAYERS, likely=swarm.peers)
    assert found.providers[0] == KvProvider(swarm.peers[1], 20)
    assert trio.current_time() < began + 0.1 and found.lookup is None
    found = await find(wanted, LAYERS, likely=[swarm.peers[2]], timeout=2)
    assert found.providers == (KvProvider(swarm.peers[2], 7),)
    swarm.indexes[0].refute(swarm.peers[2])
    assert not (await find(wanted, LAYERS, likely=[swarm.peers[2]], timeout=2)).providers
