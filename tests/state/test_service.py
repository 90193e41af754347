"""The whole state of nodes, with stores on simulated disks and links in memory."""

import errno
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host as Machine
from shoal.netsim.world import World
from shoal.state import defaults
from shoal.state.errors import StateError
from shoal.state.feeds.committer import DISK
from shoal.state.feeds.digest import Plot
from shoal.state.feeds.entry import Proof
from shoal.state.feeds.store import Store
from shoal.state.feeds.stored import StoredFeed
from shoal.state.feeds.writer import WrittenFacts
from shoal.state.membership.record import ModelName
from shoal.state.replication.gossip import PULL, encode_heads, told
from shoal.state.service import OWN_FEEDS, State
from shoal.state.settings import StateSettings
from shoal.state.views.models import model_fact
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.errors import DatabaseDamaged
from shoal.transport.identity import Identity
from shoal.transport.link.calls import Refusal
from tests.state.chains import chain, identity
from tests.state.fake_net import FakeEndpoint, FakeNet

ROOT = "ab" * 32
MODEL = model_fact(ModelName("tiny", ROOT, 6, 1000))


class Node:
    """One computer, whose disk stays while its daemon starts and stops."""

    hold = defaults.WRITE_HOLD

    def __init__(self, swarm: "Swarm", machine: Machine, who: Identity) -> None:
        self._swarm = swarm
        self._machine = machine
        self._life = -1
        self._scope = trio.CancelScope()
        self.identity = who
        self.troubles: dict[str, StateError] = {}
        self.folder = Path("/data")
        self.keeps: tuple[Plot, ...] | None = None

    async def start(self) -> "Node":
        self._life += 1
        host = SimulatedHost(
            self._machine, PROFILES["desktop"], self._swarm.nursery, life=self._life
        )
        self.endpoint = FakeEndpoint(self._swarm.net, self.identity.peer, "127.0.0.1")
        self._swarm.net.by_peer[self.identity.peer] = self.endpoint
        self.state = State(
            host,
            cast(Endpoint, self.endpoint),
            self.identity,
            StateSettings(self.folder, self.keeps, self.hold),
            trouble=self._trouble,
        )
        self._scope = trio.CancelScope()
        await self._swarm.nursery.start(self._run)
        return self

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self._scope:
            await self.state.run(task_status=task_status)

    def _trouble(self, condition: str, error: StateError | None) -> None:
        if error is None:
            self.troubles.pop(condition, None)
        else:
            self.troubles[condition] = error

    async def stop(self) -> None:
        for peer in list(self.endpoint.all_links):
            self.endpoint.cut(peer, "stopped")
        self._scope.cancel()
        await trio.sleep(0.1)

    async def crash(self) -> None:
        """Cut the power, which loses all data that was not synced."""
        assert self._machine.disk is not None
        self._machine.disk.crash()
        await self.stop()

    def fill(self) -> None:
        disk = self._machine.disk
        assert disk is not None
        disk.spec = replace(disk.spec, capacity=disk.used)

    def empty(self) -> None:
        disk = self._machine.disk
        assert disk is not None
        disk.spec = replace(disk.spec, capacity=10**12)

    def names(self, of: "Node | None" = None) -> list[str]:
        """Return the model names of a node as this one sees them."""
        return [model.name for model in self.state.views.models.of((of or self).identity.peer)]

    def epoch(self, of: "Node") -> int:
        feed = self.state.replica.feed(of.identity.public_key, ("models", 0))
        return 0 if feed is None or feed.head is None else feed.head.epoch


class Swarm:
    def __init__(self, world: World, nursery: trio.Nursery) -> None:
        self.world = world
        self.nursery = nursery
        self.net = FakeNet(nursery)
        self.count = 0

    async def node(
        self, who: Identity | None = None, keeps: tuple[Plot, ...] | None = None
    ) -> Node:
        self.count += 1
        machine = self.world.host(f"n{self.count}")
        made = Node(self, machine, who or identity(self.count))
        made.keeps = keeps
        return await made.start()

    async def pair(self) -> tuple[Node, Node]:
        """Return two linked nodes."""
        one, two = await self.node(), await self.node()
        self.connect(one, two)
        return one, two

    def connect(self, one: Node, two: Node) -> None:
        self.net.connect(one.endpoint, two.endpoint)


def run(body: Callable[[Swarm], Awaitable[None]]) -> None:
    world = World(seed=1)

    async def main() -> None:
        with trio.fail_after(3600):
            async with swarm(world) as made:
                await body(made)

    world.run(main)


@asynccontextmanager
async def swarm(world: World) -> AsyncIterator[Swarm]:
    async with trio.open_nursery() as nursery:
        yield Swarm(world, nursery)
        nursery.cancel_scope.cancel()


def test_a_fact_reaches_every_view() -> None:
    async def body(swarm: Swarm) -> None:
        one, two, three = [await swarm.node() for _ in range(3)]
        swarm.connect(one, two)
        swarm.connect(two, three)
        one.state.set("models", "tiny", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 20)
        assert one.names() == two.names(one) == ["tiny"]
        assert three.names(one) == ["tiny"], "the node between them vouches"
        one.state.set("models", "tiny", None)
        await trio.sleep(3)
        assert three.names(one) == []

    run(body)


def test_two_new_nodes_replicate_each_other_at_once() -> None:
    """Each waits for its own earlier entries, but not for the next round."""

    async def body(swarm: Swarm) -> None:
        one, two = [await swarm.node() for _ in range(2)]
        one.state.set("models", "mine", MODEL)
        two.state.set("models", "other", MODEL)
        swarm.connect(two, one)
        await trio.sleep(0.5)
        assert two.names(one) == ["mine"] and one.names(two) == ["other"]

    run(body)


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_announced_facts_survive_a_restart(how: str) -> None:
    async def body(swarm: Swarm) -> None:
        one, two = await swarm.pair()
        one.state.set("models", "tiny", MODEL)
        two.state.set("models", "other", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 3)
        assert two.names(one) == ["tiny"]
        await getattr(one, how)()
        await one.start()
        await trio.sleep(1)
        assert one.names() == ["tiny"]
        swarm.connect(one, two)
        before = two.epoch(one)
        one.state.set("models", "more", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 3)
        assert two.names(one) == one.names() == ["more", "tiny"]
        assert two.epoch(one) > before, "each run begins an epoch"
        assert one.names(two) == ["other"]

    run(body)


def test_a_restored_copy_of_the_disk_never_forks() -> None:
    """It gets its later entries back from peers, and writes still later ones after that."""

    async def body(swarm: Swarm) -> None:
        one, two = await swarm.pair()
        one.state.set("models", "early", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 3)
        await one.stop()
        old = await swarm.node(one.identity)  # another disk, as if all data were lost
        swarm.connect(old, two)
        old.state.set("models", "late", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 5)
        assert two.names(one) == ["early", "late"]
        feed = two.state.replica.feed(one.identity.public_key, ("models", 0))
        assert feed is not None and not feed.forked

    run(body)


def test_two_processes_with_one_key_are_reported_and_do_not_fork() -> None:
    async def body(swarm: Swarm) -> None:
        one, between = await swarm.pair()
        one.state.set("models", "mine", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 3)
        between.endpoint.cut(one.identity.peer, "cut")
        twin = await swarm.node(one.identity)
        twin.state.set("models", "his", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 3)
        swarm.connect(twin, between)
        await trio.sleep(5)
        between.endpoint.cut(one.identity.peer, "cut")
        swarm.connect(one, between)
        await trio.sleep(120)
        assert "same-key" in one.troubles and "same-key" not in between.troubles
        feed = between.state.replica.feed(one.identity.public_key, ("models", 0))
        assert feed is not None and not feed.forked

    run(body)


def test_a_full_disk_holds_back_own_facts_only() -> None:
    async def body(swarm: Swarm) -> None:
        one, two = await swarm.pair()
        await trio.sleep(defaults.WRITE_HOLD + 3)
        one.fill()
        one.state.set("models", "tiny", MODEL)
        two.state.set("models", "other", MODEL)
        await trio.sleep(10)
        assert two.names(one) == [], "not on disk, so no peer learns of it"
        assert one.names(two) == ["other"]
        assert one.troubles[DISK].code == "disk-full"
        one.empty()
        await trio.sleep(15)
        assert two.names(one) == ["tiny"] and not one.troubles
        await one.stop()
        await one.start()
        await trio.sleep(1)
        assert one.names(two) == ["other"]

    run(body)


def test_a_node_that_ends_while_it_shows_its_feeds_ends_the_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the garbage collector finds the generator, and trio warns."""
    reached: list[str] = []

    async def never(_state: State, stored: StoredFeed) -> None:
        reached.append(stored.name.kind)
        await trio.sleep_forever()

    async def body(swarm: Swarm) -> None:
        one = await swarm.node()
        one.state.set("models", "mine", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 3)
        await one.stop()
        monkeypatch.setattr(State, "_shown", never)
        await one.start()
        await trio.sleep(1)
        await one.stop()
        assert reached
        gc.collect()

    run(body)


def test_a_damaged_store_is_fetched_again() -> None:
    async def body(swarm: Swarm) -> None:
        one, two = await swarm.pair()
        one.state.set("models", "mine", MODEL)
        two.state.set("models", "other", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 3)
        await one.stop()
        files = one.state._host.files
        files.write(one.folder / "state.db", b"no database at all" * 1000)
        files.remove(one.folder / "state.db-wal")
        await one.start()
        await trio.sleep(1)
        assert one.troubles and one.names(two) == []
        swarm.connect(one, two)
        await trio.sleep(5)
        assert one.names(two) == ["other"]
        assert one.names() == ["mine"], "from the others"

    run(body)


def test_a_disk_that_opens_no_store_leaves_a_working_member() -> None:
    async def body(swarm: Swarm) -> None:
        one, two = [await swarm.node() for _ in range(2)]
        await one.stop()
        assert one._machine.disk is not None
        one._machine.disk.read_only = True
        files: Any = one.state._host.files
        files.remove = files.write = None
        await one.start()
        swarm.connect(one, two)
        two.state.set("models", "other", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 5)
        assert one.troubles
        assert one.names(two) == ["other"]

    run(body)


def test_vouching_is_quiet() -> None:
    """A link that comes and goes is not announced to all nodes."""

    async def body(swarm: Swarm) -> None:
        one, two = await swarm.pair()
        await trio.sleep(defaults.WRITE_HOLD + 10)
        feed = two.state.replica.feed(one.identity.public_key, ("member", 0))
        assert feed is not None and feed.head is not None
        before = feed.head
        for _ in range(5):
            two.endpoint.cut(one.identity.peer, "cut")
            await trio.sleep(10)
            swarm.connect(one, two)
            await trio.sleep(10)
        assert feed.head == before

    run(body)


def test_a_small_node_that_writes_jobs_keeps_jobs_and_claims() -> None:
    """Also after a restart without any peer to fetch them from."""

    async def body(swarm: Swarm) -> None:
        one, small = await swarm.node(), await swarm.node(keeps=())
        swarm.connect(one, small)
        for kind in ("jobs", "claims", "usage"):
            one.state.set(kind, "some", {"v": 1})
        await trio.sleep(defaults.WRITE_HOLD + 10)

        def kinds() -> set[str]:
            plots = [("jobs", 0), ("claims", 0), ("usage", 0)]
            key = one.identity.public_key
            return {plot[0] for plot in plots if small.state.replica.head(key, plot)}

        assert kinds() == set()
        small.state.set("jobs", "mine", {"v": 1})
        await trio.sleep(10)
        assert kinds() == {"jobs", "claims"}
        await small.stop()
        await small.start()
        swarm.connect(one, small)
        one.state.replication.exchange.tell = lambda: None  # type: ignore[method-assign]
        one.state.replica.give = None  # type: ignore[assignment,method-assign]
        await trio.sleep(1)
        assert kinds() == {"jobs", "claims"}

    run(body)


def test_needed_feeds_are_fetched_and_later_deleted() -> None:
    async def body(swarm: Swarm) -> None:
        one, small = await swarm.node(), await swarm.node(keeps=())
        swarm.connect(one, small)
        one.state.set("usage", "some", {"v": 1})
        await trio.sleep(defaults.WRITE_HOLD + 10)
        small.state.need([("usage", 0)])
        await trio.sleep(5)
        key = one.identity.public_key
        assert small.state.replica.head(key, ("usage", 0))
        small.state.need([])
        await trio.sleep(defaults.UNUSED_KEPT - 10)
        assert small.state.replica.head(key, ("usage", 0))
        await trio.sleep(20)
        assert small.state.replica.head(key, ("usage", 0)) is None
        stored = await small.state.replica.archive.load()
        assert {each.name.kind for each in stored if each.name.author == one.identity.peer} == {
            "member"
        }
        small.state.need([("usage", 0)])
        await trio.sleep(5)
        assert small.state.replica.head(key, ("usage", 0)), "it can be fetched again"

    run(body)


def test_a_new_node_is_vouched_for_by_a_few() -> None:
    """A node that vouches for enough others already only vouches for peers that lack vouchers."""

    async def body(swarm: Swarm) -> None:
        nodes = [await swarm.node() for _ in range(12)]
        for number, one in enumerate(nodes):
            for other in nodes[number + 1 :]:
                swarm.connect(one, other)
        await trio.sleep(60)
        far, new = [await swarm.node() for _ in range(2)]
        swarm.connect(far, nodes[0])
        for one in nodes[1:9]:
            swarm.connect(new, one)
        new.state.set("models", "new", MODEL)
        await trio.sleep(20)
        assert far.names(new) == ["new"]
        authors = far.state.replica.authors
        assert authors.vouchers(new.identity.public_key) < 8, "not by all possible nodes"

    run(body)


def test_vouches_for_one_new_peer_after_the_other_are_rate_limited() -> None:
    """Each change of vouches reaches all nodes, so one peer with ever new keys must not cause
    many."""

    async def body(swarm: Swarm) -> None:
        one, two = await swarm.pair()
        await trio.sleep(30)
        heads = set()
        for _ in range(30):
            new = await swarm.node()
            swarm.connect(new, one)
            await trio.sleep(6)
            feed = two.state.replica.feed(one.identity.public_key, ("member", 0))
            assert feed is not None
            heads.add(feed.head)
            await new.stop()
        assert 2 <= len(heads) <= 10

    run(body)


def test_links_of_the_first_seconds_are_vouched_for_together() -> None:
    """All members fetch each entry, and a node that joins gets its links one by one."""

    async def body(swarm: Swarm) -> None:
        nodes = [await swarm.node() for _ in range(8)]
        await trio.sleep(defaults.WRITE_HOLD + 5)
        heads = set()
        for step in range(300):
            if step % 10 == 0 and (number := step // 10) < len(nodes):
                for other in nodes[:number]:
                    swarm.connect(nodes[number], other)
            for one in nodes:
                heads.add(one.state.replica.head(one.identity.public_key, ("member", 0)))
            await trio.sleep(0.1)
        assert len(heads - {None}) <= 2 * len(nodes)
        authors = nodes[0].state.replica.authors
        assert all(
            authors.vouchers(one.identity.public_key) >= defaults.VOUCHED_LEAST for one in nodes
        )

    run(body)


def test_a_fact_that_is_too_large_is_refused() -> None:
    async def body(swarm: Swarm) -> None:
        one = await swarm.node()
        with pytest.raises(StateError, match="exceeds"):
            one.state.set("models", "x", {"long": "y" * defaults.FACT_BYTES})

    run(body)


def test_a_forked_own_feed_does_not_stop_the_node() -> None:
    """Its key was used twice. Its facts reach no peer, but the node keeps running."""

    async def body(swarm: Swarm) -> None:
        one, two = [await swarm.node() for _ in range(2)]
        feed = one.state.replica.feed(one.identity.public_key, ("member", 0))
        assert feed is not None
        feed.fork(Proof.of(chain(1, 1)[0], chain(1, 1, salt=b"other")[0]))
        swarm.connect(one, two)
        two.state.set("models", "other", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 2 * defaults.VOUCH_LOOK)
        assert one.names(two) == ["other"]

    run(body)


def test_lost_feeds_of_others_are_fetched_again() -> None:
    async def body(swarm: Swarm) -> None:
        one, two = await swarm.pair()
        two.state.set("models", "other", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 3)
        before = one.state.replica.feed(two.identity.public_key, ("models", 0))
        await one.state.committer.drop([two.identity.peer])
        one.state.lost(None)
        await trio.sleep(0.01)
        assert one.names(two) == []
        await trio.sleep(5)
        assert one.names(two) == ["other"]
        assert one.state.replica.feed(two.identity.public_key, ("models", 0)) is not before

    run(body)


def test_own_facts_that_only_peers_have_are_not_restored() -> None:
    """The store is lost, and the facts of an earlier run come back before this one writes."""

    async def body(swarm: Swarm) -> None:
        one, two = await swarm.pair()
        one.state.say(WrittenFacts("models", {(0, "early"): MODEL}))
        await trio.sleep(defaults.WRITE_HOLD + 3)
        assert two.names(one) == ["early"]
        await one.stop()
        anew = await swarm.node(one.identity)
        anew.state.say(WrittenFacts("models", {(0, "new"): MODEL}))
        swarm.connect(anew, two)
        await trio.sleep(5)
        assert two.names(anew) == ["new"]

    run(body)


def test_facts_that_do_not_fit_are_reported_and_retried() -> None:
    async def body(swarm: Swarm) -> None:
        one = await swarm.node()
        one.state.say(WrittenFacts("models", {(0, "x" * 300): MODEL, (0, "short"): MODEL}))
        assert one.troubles[OWN_FEEDS].code == "fact-too-large"
        await trio.sleep(defaults.WRITE_HOLD + 3)
        assert one.names() == ["short"]
        kept = one.state.own.facts.said["models"].facts
        assert isinstance(kept, dict)
        del kept[0, "x" * 300]  # as if it fitted now
        await trio.sleep(defaults.SETTLE_AGAIN)
        assert one.troubles == {}

    run(body)


def test_own_entries_that_the_disk_refuses_to_store_again() -> None:
    """The store is lost and the new disk is full, but peers have this node's earlier entries."""

    async def body(swarm: Swarm) -> None:
        one, two = await swarm.pair()
        one.state.set("models", "early", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 3)
        await one.stop()
        anew = await swarm.node(one.identity)
        anew.fill()
        swarm.connect(anew, two)
        await trio.sleep(5)
        anew.state.set("models", "late", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 5)
        assert anew.troubles[DISK].code == "disk-full"
        anew.empty()
        await trio.sleep(20)
        assert two.names(one) == anew.names() == ["early", "late"]
        anew.state.set("models", "later", MODEL)
        await trio.sleep(3)
        assert two.names(one) == ["early", "late", "later"]

    run(body)


@pytest.mark.parametrize("good", range(8))
def test_a_disk_that_fails_at_the_start(good: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fails after `good` reads of entries, and the node starts without memory."""
    reads = 0

    def entries(self: Store, *args: Any) -> list[bytes]:
        nonlocal reads
        reads += 1
        if failing and reads > good:
            raise OSError(errno.EIO, "bad block")
        return real(self, *args)

    real, failing = Store.entries, False
    monkeypatch.setattr(Store, "entries", entries)

    async def body(swarm: Swarm) -> None:
        nonlocal reads, failing
        one, two = await swarm.pair()
        one.state.set("models", "mine", MODEL)
        one.state.set("usage", "me", {"requests": 1})
        two.state.set("models", "other", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 10)
        await one.stop()
        reads, failing = 0, True
        await one.start()
        swarm.connect(one, two)
        one.state.set("models", "more", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 5)
        failing = False
        await trio.sleep(20)
        assert one.names(two) == ["other"]
        assert "more" in two.names(one)

    run(body)


def test_calls_after_the_end_are_refused() -> None:
    async def body(swarm: Swarm) -> None:
        one, two = await swarm.pair()
        one.state.set("models", "mine", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 3)
        one._scope.cancel()
        await trio.sleep(0.1)
        asked = encode_heads([told(one.identity.public_key, ("models", 0), None)])
        answer = await one.endpoint.serve(two.identity.peer, PULL, asked)
        assert isinstance(answer, Refusal) and answer.code == "ended"

    run(body)


def test_a_disk_that_damages_each_new_file_does_not_stop_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing, real = False, Store.commit

    def commit(self: Store, works: Any) -> Any:
        if failing:
            raise DatabaseDamaged("a page differs from what was written")
        return real(self, works)

    monkeypatch.setattr(Store, "commit", commit)

    async def body(swarm: Swarm) -> None:
        nonlocal failing
        one, two = await swarm.pair()
        await trio.sleep(defaults.WRITE_HOLD + 3)
        failing = True
        one.state.set("models", "mine", MODEL)
        await trio.sleep(10)
        assert one.names() == two.names(one) == [] and one.troubles[DISK].code == "disk-error"
        failing = False
        await trio.sleep(20)
        assert one.names() == two.names(one) == ["mine"]

    run(body)


def test_damaged_own_feeds_are_written_again() -> None:
    async def body(swarm: Swarm) -> None:
        one, two = await swarm.pair()
        one.state.set("models", "mine", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 10)
        before = two.epoch(one)
        store = one.state.committer.store
        assert store is not None
        store.database.run("UPDATE entries SET sealed = x'00'")
        found = await one.state.inspection.verified()
        assert one.identity.peer in {name.author for name in found.damaged}
        await trio.sleep(5)
        assert two.epoch(one) > before and two.names(one) == ["mine"]
        assert not (await one.state.inspection.verified()).damaged
        assert one.names(two) == two.names() == []

    run(body)


def test_objects_loaded_at_a_start_are_garbage_collected_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With hundreds of thousands of objects, each collection would stall the loop for 0.2 s."""
    kept: list[int] = []

    async def body(swarm: Swarm) -> None:
        one = await swarm.node()
        one.state.set("models", "tiny", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 10)
        await one.stop()
        views: list[State] = []
        monkeypatch.setattr(
            SimulatedHost,
            "keep_memory",
            lambda host: kept.append(
                len(views[-1].views.models.of(one.identity.peer)) if views else 0
            ),
        )
        await one.start()
        views.append(one.state)
        await trio.sleep(5)

    run(body)
    assert len(kept) > 2 and kept[-1] == 1


def test_stored_facts_are_in_the_views_once_shown_is_set() -> None:
    async def body(swarm: Swarm) -> None:
        one = await swarm.node()
        one.state.set("models", "tiny", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 3)
        assert one.state.get("models", "tiny") == MODEL and one.state.shown.is_set()
        await one.stop()
        await one.start()
        assert not one.state.shown.is_set()
        await one.state.shown.wait()
        assert one.names() == ["tiny"]
        assert one.state.get("models", "tiny") == MODEL
        assert one.state.get("models", "other") is None

    run(body)
