"""Models over the DHT between whole daemons, where the provider is not a linked member."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from shoal.dht.kv.chain import KvScope, chain_of
from shoal.dht.kv.index import KvFound, KvProvider
from shoal.dht.records.record import BlobBody, NameBody, ShardBody
from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.node.errors import ControlError
from shoal.state.membership.membership import Membership
from shoal.state.membership.record import MemberRecord
from shoal.state.vouching import Vouching
from shoal.tasks.engine.interface import Parts
from shoal.transport.identity import PeerId

Body = Callable[[World], Awaitable[Any]]
SLOW = LinkSpec(up=PipeSpec(0.01, 0.001, 4e5), down=PipeSpec(0.01, 0.001, 4e6))


@pytest.fixture(autouse=True)
def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make peers without a link neither members nor vouched for: their feeds do not arrive, as in a
    swarm too large for one node.
    """
    members = Membership.members

    def linked(self: Membership) -> dict[PeerId, MemberRecord]:
        own, links = self.own().peer, self._begun
        near = {own, *(link.peer for link in links)}
        return {peer: record for peer, record in members(self).items() if peer in near}

    async def nobody(_self: Vouching) -> None: ...

    monkeypatch.setattr(Membership, "members", linked)
    monkeypatch.setattr(Vouching, "run", nobody)


def run(body: Body, *, seed: int = 1) -> Any:
    world = World(seed=seed)

    async def main() -> Any:
        with trio.fail_after(400):
            return await body(world)

    return world.run(main)


async def apart(world: World, link: LinkSpec | None = None, **more: Any) -> list[DaemonHandle]:
    """Start the provider of `tiny`, a hub that holds nothing, and a node that only knows
    the hub.
    """
    holder = await world.host("holder", link=link).start(links=1, engine=False)
    hub = await world.host("hub").start(bootstrap=[holder], links=1, engine=False)
    await hub.until(lambda status: status["peers"] == 1)
    asker = await world.host("asker").start(bootstrap=[hub], links=1, engine=False, **more)
    await asker.until(lambda status: status["peers"] == 1)
    await trio.sleep(20)  # their records are announced
    assert hub.peer in asker.node.directory.members()
    assert holder.peer not in asker.node.directory.members()
    return [holder, hub, asker]


async def root_of(daemon: DaemonHandle) -> str:
    (model,) = (await daemon.ask("models"))["models"]
    return str(model["root"])


def test_a_model_is_pulled_from_a_node_that_is_not_a_member() -> None:
    async def body(world: World) -> None:
        holder, hub, asker = await apart(world)
        root = await root_of(holder)
        got = await asker.ask("model_pull", name=f"tiny@{root[:8]}")
        assert (got["name"], got["root"], got["peers"], got["liars"]) == ("tiny", root, 1, [])
        assert [(one["peer"], one["source"]) for one in got["vouchers"]] == [(holder.peer, "dht")]
        assert got["fetched"] > 2**20
        held = await asker.node.library.stored_parts(root)
        assert held.complete and asker.node.library.names() == {"tiny": root}
        assert holder.peer not in asker.node.directory.members(), "the link was only for this"

        # A node that has pulled it provides it and vouches for it, also after the first one is
        # gone.
        await trio.sleep(20)
        await holder.stop()
        late = await world.host("late").start(bootstrap=[hub], links=1, engine=False)
        await trio.sleep(20)
        got = await late.ask("model_pull", name="tiny")
        assert asker.peer in [one["peer"] for one in got["vouchers"]]
        assert (await late.node.library.stored_parts(root)).complete
        again = await late.ask("model_pull", name="tiny")
        assert (again["fetched"], again["peers"]) == (0, 0)

    run(body)


def test_a_node_serves_a_model_found_through_the_dht() -> None:
    async def body(world: World) -> None:
        holder, hub, _ = await apart(world, SLOW)
        root = await root_of(holder)
        server = await world.host("server").start(
            bootstrap=[hub], links=1, model=f"tiny@{root[:12]}"
        )
        shard = await server.serving()
        assert (shard["root"], shard["layers"]) == (root, "0:6")
        assert holder.peer not in server.node.directory.members()
        assert server.node.library.names() == {"tiny": root}, "its name came along"
        said = [line for line in server.said if " % fetched: " in line]
        assert len(said) > 3, "its terminal says how far it is"
        assert (await server.generate("Once", max_tokens=40))["tokens"] == 40
        await trio.sleep(130)
        (told,) = [each for each in server.node.discovery.dht.own() if isinstance(each, ShardBody)]
        measured = server.node.stage.speed(told.root, Parts(True, 0, told.stop, True))
        assert told.speed == pytest.approx(measured.tokens_per_s, rel=0.3)
        assert told.speed > 0

    run(body)


def test_an_interrupted_pull_resumes() -> None:
    async def body(world: World) -> None:
        holder, _, asker = await apart(world, SLOW)
        root = await root_of(holder)
        with trio.move_on_after(12) as scope:
            await asker.ask("model_pull", name="tiny")
        assert scope.cancelled_caught
        await trio.sleep(1)
        assert not asker.node.exchange.fetching(), "the requester's end cancels it"
        before = await asker.node.library.stored_parts(root)
        assert 0 < before.chunks < before.chunks_total
        (told,) = [each for each in asker.node.discovery.dht.own() if isinstance(each, BlobBody)]
        assert told.ranges, "a node provides what it has fetched so far"
        got = await asker.ask("model_pull", name="tiny")
        assert got["fetched"] <= before.size_total - before.size
        assert (await asker.node.library.stored_parts(root)).complete

    run(body)


def test_the_error_names_a_missing_provider() -> None:
    async def body(world: World) -> None:
        holder, _, asker = await apart(world)
        for name, code in (("nothing", "unknown-model"), ("ab" * 32, "no-source")):
            with pytest.raises(ControlError) as raised:
                await asker.ask("model_pull", name=name)
            assert raised.value.code == code and raised.value.hint
        assert "no reachable node holds" in raised.value.message
        disk = asker.host.disk
        assert disk is not None
        size, disk.spec = disk.spec, type(disk.spec)(disk.used + 2_000_000)
        with pytest.raises(ControlError) as raised:
            await asker.ask("model_pull", name="tiny")
        assert raised.value.code == "disk-full" and "it continues where it stopped" in str(
            raised.value.hint
        )
        disk.spec = size
        await asker.ask("model_pull", name="tiny")
        held = await asker.node.library.stored_parts(await root_of(holder))
        assert held.complete

    run(body)


def test_a_forged_pointer_is_a_choice_and_a_hash_picks() -> None:
    """A liar signs the same name for a root that does not exist, and claims to provide it."""

    async def body(world: World) -> None:
        holder, hub, asker = await apart(world)
        root, fake = await root_of(holder), "ef" * 32
        for said in (NameBody("tiny", fake, 6, 1), BlobBody(fake, 1, 1)):
            hub.node.discovery.dht.publish(said, lasting=False)
        await trio.sleep(10)
        with pytest.raises(ControlError) as raised:
            await asker.ask("model_pull", name="tiny")
        assert raised.value.code == "ambiguous-model"
        assert "tiny@efefefef" in raised.value.message and hub.peer in raised.value.message
        shown = await asker.ask("model_show", name=f"tiny@{root[:8]}")
        assert [one["peer"] for one in shown["vouchers"]] == [holder.peer]
        assert shown["others"] == [], "asked for by its hash it means one thing"
        assert (await asker.ask("model_pull", name=f"tiny@{root[:8]}"))["root"] == root
        shown = await asker.ask("model_show", name="tiny")
        assert shown["root"] == root, "named here now, so it comes first"
        (other,) = shown["others"]
        assert other["name"] == "tiny@efefefef"
        with pytest.raises(ControlError) as raised:
            await asker.ask("model_pull", name=f"tiny@{fake}")
        assert raised.value.code == "no-source"

    run(body)


def test_a_network_without_the_internet() -> None:
    """Two nodes behind one router, and nothing else; neither has a bootstrap node."""

    async def body(world: World) -> None:
        home = world.gateway("home")
        holder = await world.host("a", behind=home).start(engine=False)
        asker = await world.host("b", behind=home).start(engine=False, model="none-yet")
        await asker.until(lambda status: status["peers"] == 1)
        await trio.sleep(15)
        root = await root_of(holder)
        got = await asker.ask("model_pull", name=f"tiny@{root[:8]}")
        assert got["root"] == root and (await asker.node.library.stored_parts(root)).complete

    run(body)


def test_a_provider_of_wrong_bytes_is_dropped_and_named() -> None:
    async def body(world: World) -> None:
        _, hub, asker = await apart(world)
        await hub.ask("model_pull", name="tiny")
        await trio.sleep(20)
        store = hub.node.library.store
        honest = store.get_to_serve

        def flipped(digest: str, now: float) -> bytes:
            data = bytearray(honest(digest, now))
            data[0] ^= 1
            return bytes(data)

        setattr(store, "get_to_serve", flipped)  # noqa: B010
        got = await asker.ask("model_pull", name="tiny")
        assert got["liars"] == [hub.peer]
        assert (await asker.node.library.stored_parts(got["root"])).complete

    run(body)


def test_the_kv_of_a_prompt_is_found_at_a_node_that_is_not_a_member() -> None:
    async def body(world: World) -> None:
        holder, hub, asker = await apart(world)
        scope = KvScope(await root_of(holder), "float32")
        names = [number.to_bytes(16) for number in range(25)]
        mine, wanted = chain_of(scope, names[:10]), chain_of(scope, names)
        other = chain_of(scope, [*names[:5], *(name[::-1] for name in names[:12])])
        assert mine is not None and wanted is not None and other is not None
        holder.node.kv.announce(mine, (0, 6))
        hub.node.kv.announce(other, (0, 6))
        await trio.sleep(10)

        async def longest() -> KvFound:
            return await asker.node.kv.longest(wanted, (0, 6))

        found = await asker.host.run(longest)
        assert found.providers == (KvProvider(holder.peer, 10), KvProvider(hub.peer, 5))
        assert found.rounds <= 3
        asker.node.kv.refute(holder.peer)
        assert (await asker.host.run(longest)).providers == (KvProvider(hub.peer, 5),)
        hub.node.kv.withdraw(other)
        await trio.sleep(10)
        assert (await asker.host.run(longest)).providers == ()

    run(body)
