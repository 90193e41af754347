"""KV chunks between whole daemons: a replica fetches what another has computed of a prompt."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.node.invite import decode
from shoal.tasks.chunks.beside import BesideFetch
from shoal.tasks.chunks.connector import ChunkConnector
from shoal.tasks.chunks.provider import ChunkProvider
from shoal.tasks.engine.interface import KvForm, KvRange
from shoal.tasks.inference.conversation import heldkv
from tests.marks import in_ci

_WIRE = PipeSpec(rate=1e8 / 8, delay=0.0002)
LAN = LinkSpec(up=_WIRE, down=_WIRE)
_RASPBERRY = PROFILES["raspberry"]
SLOW = replace(_RASPBERRY, speed=replace(_RASPBERRY.speed, factor=100.0))
LONG = "Once upon a time there was a boat on the sea, and it sailed to an island. " * 30


def run(body: Callable[[World], Awaitable[Any]], *, seed: int = 1) -> Any:
    world = World(seed=seed)

    async def main() -> Any:
        with trio.fail_after(300):
            return await body(world)

    return world.run(main)


def connector(daemon: DaemonHandle) -> ChunkConnector:
    chunks = daemon.node.compute.chunks
    assert chunks is not None
    return chunks.connector


def provider(daemon: DaemonHandle) -> ChunkProvider:
    chunks = daemon.node.compute.chunks
    assert chunks is not None
    return chunks.provider


async def joined(world: World, name: str, by: DaemonHandle, **settings: Any) -> DaemonHandle:
    code = decode((await by.ask("invite", role="operator"))["code"])
    node: DaemonHandle = await world.host(name, link=LAN).start(invitation=code, **settings)
    return node


async def replicas(world: World, *, private: bool = True) -> list[DaemonHandle]:
    """Start two slow replicas and a gateway, in one private swarm or in an open one."""
    if private:
        a = await world.host("a", link=LAN).start(private=True, profile=SLOW)
        b = await joined(world, "b", a, profile=SLOW, model="tiny")
        asker = await joined(world, "asker", a, engine=False)
    else:
        a = await world.host("a", link=LAN).start(profile=SLOW)
        b = await world.host("b", link=LAN).start(bootstrap=[a], profile=SLOW, model="tiny")
        asker = await world.host("asker", link=LAN).start(bootstrap=[a, b], engine=False)
    for daemon in (a, b):
        await daemon.serving()
    await asker.until(lambda status: status["peers"] == 2)
    return [a, b, asker]


async def ask(asker: DaemonHandle) -> str:
    answer = await asker.generate(LONG, raw=True, max_tokens=8)
    await trio.sleep(3)
    return str(answer["text"])


async def from_both(daemons: list[DaemonHandle], other: DaemonHandle | None = None) -> list[str]:
    """Return the texts of both replicas. The one that answers first takes no more sessions then,
    but gives its chunks. `other` asks the second time.
    """
    a, b, asker = daemons
    first = await ask(asker)
    (served,) = [daemon for daemon in (a, b) if len(provider(daemon).store)]
    served.node.stage.withdraw()
    return [first, await ask(other or asker)]


@pytest.mark.parametrize("private", [False, *in_ci(True)])
def test_the_second_run_is_served_by_the_other_replica_with_fetched_kv(private: bool) -> None:
    async def body(world: World) -> None:
        a, b, asker = await replicas(world, private=private)
        text, again = await from_both([a, b, asker])
        assert again == text
        fetched = sum(connector(each).fetched_bytes for each in (a, b))
        given = sum(provider(each).given_bytes for each in (a, b))
        assert fetched > 0 and given >= fetched

    run(body)


class SilentEngine:
    """Never gives what it has computed."""

    async def read_kv(self, source: Any, part: KvRange, form: KvForm) -> bytes:
        await trio.sleep_forever()
        raise AssertionError


def test_a_provider_that_gives_nothing_makes_the_answer_hardly_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = list[float]()

    def begin(fetch: BesideFetch) -> None:
        began.append(trio.current_time())

    monkeypatch.setattr(BesideFetch, "begin", begin)

    async def body(world: World) -> None:
        daemons = await replicas(world)
        *both, asker = daemons
        seconds, texts = [], []
        for _ in range(2):
            asked = trio.current_time()
            answer = await asker.generate(LONG, raw=True, max_tokens=8)
            seconds.append(trio.current_time() - asked)
            texts.append(answer["text"])
            await trio.sleep(3)
            (served,) = [each for each in both if len(provider(each).store)][:1]
            engine: Any = SilentEngine()
            provider(served)._engine = engine
            served.node.stage.withdraw()
        assert texts[0] == texts[1] and seconds[1] < 1.07 * seconds[0]
        assert len(began) == 1 and began[0] < asked + 0.3, "it computed while the fetch went on"

    run(body)


class LyingEngine:
    """Gives other numbers than those that it has computed, and signs them."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    async def read_kv(self, source: Any, part: KvRange, form: KvForm) -> bytes:
        data = bytearray(await self._engine.read_kv(source, part, form))
        start = len(data) - 2 * 4 * 32 * 4 * (part.stop - part.start)  # of one layer's values
        for at in range(start, start + 8 * (part.stop - part.start), 8):
            data[at] ^= 1
        return bytes(data)


async def lied_to(world: World, *, private: bool) -> tuple[str, str, list[ChunkConnector]]:
    """Return the texts of both replicas if each lies to the other."""
    a, b, asker = await replicas(world, private=private)
    for daemon in (a, b):
        engine: Any = LyingEngine(daemon.engine)
        provider(daemon)._engine = engine
    text, again = await from_both([a, b, asker])
    return text, again, [connector(a), connector(b)]


def test_wrong_values_of_a_stranger_are_found_and_the_session_computes() -> None:
    async def body(world: World) -> None:
        text, again, connectors = await lied_to(world, private=False)
        assert again == text
        assert sum(each.fetched_bytes for each in connectors) > 0
        assert any(each.shy_until for each in connectors)

    run(body)


@pytest.mark.ci
def test_without_the_recomputed_block_they_would_change_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twin of the test above."""
    monkeypatch.setattr("shoal.tasks.engine.kv.arrival.KV_WRONG", 1e9)

    async def body(world: World) -> None:
        text, again, _ = await lied_to(world, private=False)
        assert again != text

    run(body)


@pytest.mark.ci
def test_a_member_of_a_private_swarm_is_believed() -> None:
    async def body(world: World) -> None:
        text, again, connectors = await lied_to(world, private=True)
        assert again != text
        assert not any(each.shy_until for each in connectors)

    run(body)


@pytest.mark.ci
def test_a_gateway_of_its_own_finds_nothing() -> None:
    """The names of one gateway say nothing to another: no gateway sees that a prompt was used."""

    async def body(world: World) -> None:
        a, b, asker = await replicas(world)
        other = await joined(world, "other", a, engine=False)
        await other.until(lambda status: status["peers"] == 3)
        text, again = await from_both([a, b, asker], other)
        assert again == text
        assert all(len(provider(each).store) for each in (a, b))
        assert not any(connector(each).fetched_bytes for each in (a, b))

    run(body)


# Chains of two stages. The second one is replaced, and the first one has cached the prompt.


async def chain(world: World, *, private: bool) -> list[DaemonHandle]:
    """Start a first stage, two replicas of the second one, and a gateway."""
    ends: list[dict[str, Any]] = [{"profile": SLOW, "model": "tiny", "layers": (3, 6)}] * 2
    if private:
        a = await world.host("a", link=LAN).start(private=True, profile=SLOW, layers=(0, 3))
        others = [await joined(world, name, a, **ends[0]) for name in ("b", "c")]
        asker = await joined(world, "asker", a, engine=False)
    else:
        a = await world.host("a", link=LAN).start(profile=SLOW, layers=(0, 3))
        others = [
            await world.host(name, link=LAN).start(bootstrap=[a], **ends[0]) for name in ("b", "c")
        ]
        asker = await world.host("asker", link=LAN).start(bootstrap=[a, *others], engine=False)
    for daemon in (a, *others):
        await daemon.serving()
    for daemon in (asker, *others):
        await daemon.until(lambda status: status["peers"] == 3)
    return [a, *others, asker]


@pytest.fixture
def left_out(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of positions that gateways have left out."""
    found, asked = list[int](), heldkv._left_out

    def note(run: Any, first: int) -> tuple[int, int | None]:
        start, behind = asked(run, first)
        found.extend([start - behind] if behind is not None else [])
        return start, behind

    monkeypatch.setattr(heldkv, "_left_out", note)
    return found


async def over_both(
    daemons: list[DaemonHandle], spoil: Callable[[DaemonHandle], None] = lambda _: None
) -> tuple[list[str], list[float]]:
    """Return the texts of chains with each of the replicas, and the seconds that they took. The one
    that answers first takes no more sessions then, but gives its chunks, which `spoil` may spoil.
    """
    *_, asker = daemons
    texts, seconds = list[str](), list[float]()
    for _ in range(2):
        began = trio.current_time()
        answer = await asker.generate(LONG, raw=True, max_tokens=8)
        seconds.append(trio.current_time() - began)
        texts.append(str(answer["text"]))
        await trio.sleep(3)
        for served in [each for each in daemons[1:3] if len(provider(each).store)][:1]:
            spoil(served)
            served.node.stage.withdraw()
    return texts, seconds


@pytest.mark.parametrize("private", [True, *in_ci(False)])
def test_a_chain_leaves_out_what_its_new_stage_has_fetched(
    private: bool, left_out: list[int]
) -> None:
    async def body(world: World) -> None:
        daemons = await chain(world, private=private)
        texts, seconds = await over_both(daemons)
        assert texts[0] == texts[1]
        assert sum(left_out) >= 240, "a doubted block is computed"
        assert seconds[1] < 0.85 * seconds[0]
        assert sum(connector(each).fetched_bytes for each in daemons[1:3]) > 0

    run(body)


@pytest.mark.ci
def test_a_provider_that_gives_a_chain_nothing_makes_the_answer_hardly_later(
    left_out: list[int],
) -> None:
    def silence(daemon: DaemonHandle) -> None:
        engine: Any = SilentEngine()
        provider(daemon)._engine = engine

    async def body(world: World) -> None:
        texts, seconds = await over_both(await chain(world, private=True), silence)
        assert texts[0] == texts[1] and not left_out
        assert seconds[1] < 1.1 * seconds[0]

    run(body)


@pytest.mark.ci
def test_wrong_values_for_a_stage_of_a_chain_are_found(left_out: list[int]) -> None:
    def spoil(daemon: DaemonHandle) -> None:
        engine: Any = LyingEngine(daemon.engine)
        provider(daemon)._engine = engine

    async def body(world: World) -> None:
        daemons = await chain(world, private=False)
        texts, _ = await over_both(daemons, spoil)
        assert texts[0] == texts[1] and left_out
        assert any(connector(each).shy_until for each in daemons[1:3])

    run(body)
