"""Whole daemons on simulated hosts: boot, join, split a model, generate, crash, restart."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.daemons.host import new_disk
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.disk.disk import DiskSpec
from shoal.netsim.errors import SimError
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.trace.trace import Trace
from shoal.netsim.world import World
from shoal.node.daemon.daemon import run_node
from shoal.node.errors import ControlError, DataFolderInUse, NodeError
from shoal.node.settings.config import NodeConfig
from shoal.transport.address import Address
from shoal.transport.errors import ShoalError
from shoal.transport.host.real import RealHost
from shoal.transport.host.seam import Host

PROMPT = "Once upon a time"
HOME = LinkSpec(
    up=PipeSpec(rate=10e6 / 8, delay=0.008, loss=0.005),
    down=PipeSpec(rate=50e6 / 8, delay=0.008, loss=0.005),
)
Body = Callable[[World], Awaitable[Any]]


def run(body: Body, *, seed: int = 1, trace: Trace | None = None) -> Any:
    world = World(seed=seed, trace=trace)

    async def main() -> Any:
        with trio.fail_after(300):
            return await body(world)

    return world.run(main)


def only(error: BaseException) -> BaseException:
    """Return the only exception in nested groups."""
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    return error


async def three(world: World, **settings: Any) -> list[DaemonHandle]:
    """Start three daemons: a public node with the first half of the model; behind a lossy home's
    NAT a node with the second half, and one without an engine.
    """
    first, home = world.host("public"), world.gateway("home", link=HOME)
    second, third = world.host("desk", behind=home), world.host("sofa", behind=home)
    a = await first.start(layers=(0, 3), **settings)
    b = await second.start(bootstrap=[a], model="tiny", layers=(3, 6), **settings)
    c = await third.start(bootstrap=[a, b], engine=False)
    for daemon in (a, b):
        await daemon.serving()
    for daemon in (a, b, c):
        await daemon.until(lambda status: status["peers"] == 2)
    return [a, b, c]


def test_a_gateway_keeps_the_files_of_a_model_until_it_is_wanted_for_itself() -> None:
    async def body(world: World) -> None:
        server = await world.host("server").start()
        await server.serving()
        asker = await world.host("asker").start(bootstrap=[server], engine=False)
        await asker.until(lambda status: status["peers"] == 1)
        await asker.generate(PROMPT, max_tokens=2)
        usage, disk = asker.node.library.usage, (await asker.ask("status"))["disk"]
        assert usage.passing == asker.node.library.roots() == {*usage.fetched}
        assert 0 < disk["used_bytes"] < 2**20 and not disk["set"]
        assert disk["limit_bytes"] == 100 * 2**30, "a default"
        await asker.ask("model_pull", name="tiny")
        assert not usage.passing and usage.fetched

    run(body)


async def alone(world: World) -> str:
    """Return the text of a daemon with all layers."""
    daemon = await world.host("alice").start()
    await daemon.serving()
    return str((await daemon.generate(PROMPT))["text"])


def test_one_daemon_boots_and_serves_the_embedded_model() -> None:
    async def body(world: World) -> str:
        daemon = await world.host("alice").start()
        assert world.events.now < 1
        shard = await daemon.serving()
        assert (shard["model"], shard["layers"]) == ("tiny", "0:6")
        status = await daemon.status()
        over_udp = replace(daemon.address, transport="udp")
        assert status["addresses"] == [str(daemon.address), str(over_udp)]
        assert status["peer"] == daemon.peer
        assert status["stalls"]["count"] == 0 and status["health"] == []
        assert status["capacity"]["memory_bytes"] == PROFILES["desktop"].offered
        said = await daemon.generate(PROMPT, max_tokens=8)
        assert said["tokens"] == 8 and said["text"]
        assert daemon.said[0].startswith("shoal ")
        before = trio.current_time()
        await daemon.stop()
        assert trio.current_time() - before < 1
        assert not world.hosts["alice"].running
        return str(said["text"])

    assert run(body) == run(body, seed=2), "its text depends only on the prompt"


@pytest.mark.ci
def test_three_daemons_over_a_lossy_nat_give_the_text_of_one() -> None:
    expected = run(alone)

    async def body(world: World) -> None:
        for daemon in await three(world):
            said = await daemon.generate(PROMPT)
            assert said["text"] == expected
            assert [node["layers"] for node in said["nodes"]] == ["0:3", "3:6"]
        assert world.network.dropped > 0

    run(body)


def test_a_node_without_an_engine_is_a_full_member() -> None:
    async def body(world: World) -> None:
        *_, daemon = await three(world)
        status = await daemon.status()
        assert status["serving"]["phase"] == "no-engine" and not status["capacity"]["engine"]

    run(body)


@pytest.mark.ci
def test_the_same_seed_gives_the_same_packets() -> None:
    async def body(world: World) -> str:
        *_, daemon = await three(world)
        said = await daemon.generate(PROMPT, temperature=1.0)
        await world.hosts["desk"].crash()
        await trio.sleep(1)
        await world.hosts["desk"].restart()
        await trio.sleep(4)
        return str(said["text"])

    traces = [Trace(), Trace(), Trace()]
    texts = [
        run(body, seed=seed, trace=trace) for seed, trace in zip((5, 5, 6), traces, strict=True)
    ]
    assert traces[0].digest == traces[1].digest != traces[2].digest
    assert texts[0] == texts[1] != texts[2]
    assert traces[0].count > 1000


@pytest.mark.ci
def test_the_same_seed_gives_the_same_packets_with_many_sessions_at_once() -> None:
    """They share the steps of two engines, and the second round finds the prefixes of the first."""
    prompts = [f"{PROMPT} {number % 5}" for number in range(10)]

    async def body(world: World) -> list[str]:
        daemons = await three(world)
        texts: dict[int, str] = {}

        async def ask(number: int) -> None:
            await trio.sleep(0.01 * (number % 7))
            said = await daemons[number % 3].generate(prompts[number % 10], max_tokens=20)
            texts[number] = str(said["text"])

        for first in (0, 10):
            async with trio.open_nursery() as nursery:
                for number in range(first, first + 10):
                    nursery.start_soon(ask, number)
        return [texts[number] for number in range(20)]

    traces = [Trace(), Trace()]
    texts = [run(body, seed=5, trace=trace) for trace in traces]
    assert traces[0].digest == traces[1].digest
    assert texts[0] == texts[1]
    assert texts[0][:10] == texts[0][10:], "neither other sessions nor cached prefixes change it"
    assert texts[0][:5] == texts[0][5:10]
    assert len(set(texts[0])) == 5


def test_a_crash_and_a_restart_keep_the_identity() -> None:
    async def body(world: World) -> None:
        a, b, c = await three(world)
        before, text = b.peer, (await c.generate(PROMPT))["text"]
        now = trio.current_time()
        await b.host.crash()
        assert not b.host.running and trio.current_time() == now
        await a.until(lambda status: status["peers"] == 1)
        again = await b.host.restart()
        assert again.peer == before and again is not b
        shard = await again.serving()
        assert shard["layers"] == "3:6", "loaded from the chunks on its disk"
        for daemon in (a, c):
            await daemon.until(lambda status: status["peers"] == 2)
        await trio.sleep(2)  # its shards are announced after its return
        assert (await c.generate(PROMPT))["text"] == text

    run(body)


def test_a_crash_during_boot_leaves_a_folder_that_boots() -> None:
    """Crash at each of 30 instants of the first 0.15 s."""

    async def body(world: World) -> None:
        for number in range(30):
            host = world.host(f"host{number}")
            daemon = Daemon()
            with trio.move_on_after(0.005 * (number + 1)):
                await host.start(daemon)
            await host.crash()
            host.equip(host)
            host.up = True
            handle = await host.start(daemon)
            await handle.serving()
            await handle.stop()

    run(body)


def test_a_clean_stop_and_start_on_the_same_disk() -> None:
    async def body(world: World) -> None:
        host = world.host("alice")
        first = await host.start()
        await first.serving()
        await first.stop()
        second = await host.start()
        assert second.peer == first.peer
        with pytest.raises(SimError):
            await host.start()

    run(body)


def test_a_stage_that_dies_in_the_middle_ends_the_request_with_its_name() -> None:
    async def body(world: World) -> None:
        _, b, c = await three(world)
        async with trio.open_nursery() as nursery:

            async def kill() -> None:
                await c.until(lambda status: status["sessions"]["gateway"] == 1, every=0.05)
                await trio.sleep(0.5)
                await b.host.crash()

            nursery.start_soon(kill)
            with pytest.raises(ControlError) as raised:
                await c.generate(PROMPT, max_tokens=400)
        assert b.peer in raised.value.message

    run(body)


def test_an_engine_that_crashes_comes_back() -> None:
    async def body(world: World) -> None:
        _, b, c = await three(world)
        text = (await c.generate(PROMPT))["text"]
        b.engine.crash()
        status = await b.until(lambda status: status["health"])
        assert "restarted" in status["health"][0]["sentence"]
        await b.serving()
        await trio.sleep(1)
        assert (await c.generate(PROMPT))["text"] == text

    run(body)


def test_a_full_disk_is_a_clear_error_until_there_is_space() -> None:
    async def body(world: World) -> None:
        a, b = world.host("a"), world.host("b")
        first = await a.start()
        await first.serving()
        profile = replace(PROFILES["desktop"], disk=DiskSpec(3_000_000))
        second = await b.start(bootstrap=[first], profile=profile)
        status = await second.until(lambda status: len(status["health"]) > 1)
        disk, jobs = sorted(status["health"], key=lambda each: "jobs" in each["sentence"])
        assert disk["sentence"].startswith("the disk of `/shoal/models")
        assert "full" in disk["sentence"] and "free some space" in disk["hint"]
        assert "results of other nodes' jobs" in jobs["sentence"] and jobs["hint"]
        assert b.disk is not None
        b.disk.spec = DiskSpec()
        await second.serving()

    run(body)


def test_parts_that_cannot_reach_each_other_report_it() -> None:
    """Two homes behind NATs, each with half of the model; between them a node without layers."""

    async def body(world: World) -> None:
        public = world.host("public")
        a = await public.start(layers=(0, 6), relay=0)  # otherwise the halves meet through it
        homes = [world.gateway("home"), world.gateway("other")]
        halves = []
        for number, home in enumerate(homes):
            layers = (3 * number, 3 * number + 3)
            host = world.host(f"half{number}", behind=home)
            halves.append(await host.start(bootstrap=[a], model="tiny", layers=layers))
            await halves[-1].serving()
        await a.stop()
        a = await public.start(engine=False, relay=0)
        await a.until(lambda status: status["peers"] == 2)
        for half in halves:  # they learn that the other is alive, but cannot connect
            await half.until(lambda status: status["peers"] == 2)
            with pytest.raises(ControlError) as raised:
                await half.generate(PROMPT)
            assert raised.value.code == "unreachable" and "no link to" in raised.value.message
        with pytest.raises(ControlError) as raised:
            await a.generate(PROMPT)
        assert raised.value.code == "unreachable" and "has no link to" in raised.value.message

    run(body)


def test_a_read_only_disk_keeps_a_daemon_from_starting() -> None:
    async def body(world: World) -> None:
        host = world.host("alice")
        await (await host.start()).stop()
        assert host.disk is not None
        host.disk.read_only = True
        with pytest.raises(BaseExceptionGroup) as raised:
            await host.start()
        error = only(raised.value)
        assert isinstance(error, NodeError) and error.code == "disk"
        assert "`/shoal` is read-only" in error.message and "--data" in str(error.hint)
        host.disk.read_only = False
        await (await host.start()).stop()

    run(body)


def test_after_lost_syncs_and_a_crash_a_daemon_boots_or_says_what_is_damaged() -> None:
    async def body(world: World) -> set[str]:
        outcomes = set()
        for number in range(12):
            host, daemon = world.host(f"host{number}"), Daemon(engine=False)
            host.disk = new_disk(host, daemon.profile)
            host.disk.lost_syncs = True
            await host.start(daemon)
            await host.crash()
            host.disk.lost_syncs = False
            try:
                await host.restart()
                outcomes.add("boots")
            except (ShoalError, BaseExceptionGroup) as error:
                outcomes.add(str(only(error)))
        return outcomes

    assert run(body) == {"boots", "the identity in `/shoal/identity.key` is damaged"}


def test_a_second_daemon_on_the_folder_is_refused_by_its_lock() -> None:
    async def body(world: World) -> None:
        daemon = await world.host("alice").start()
        with pytest.raises(DataFolderInUse, match="process 1000"):
            await run_node(daemon.node.host, daemon.node.config)

    run(body)


def test_a_port_in_use_is_refused() -> None:
    async def occupy() -> None:
        socket = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_STREAM)
        await socket.bind(("0.0.0.0", 4001))
        socket.listen(1)

    async def body(world: World) -> None:
        host = world.host("alice")
        await host.run(occupy)
        with pytest.raises((NodeError, BaseExceptionGroup)) as raised:
            await host.start()
        error = only(raised.value)
        assert isinstance(error, NodeError) and error.code == "port-in-use"

    run(body)


def test_an_engine_may_be_a_factory() -> None:
    made = []

    def factory(host: Host, threads: int, memory: int) -> None:
        made.append((threads, memory))

    async def body(world: World) -> None:
        daemon = await world.host("alice").start(engine=factory, memory="1GiB", profile="raspberry")
        assert made == [(4, 1 << 30)]
        await trio.sleep(2)
        status = await daemon.status()
        assert status["serving"]["phase"] == "no-engine"
        assert "as its owner chose" in status["serving"]["state"] and status["health"] == []

    run(body)


def test_a_daemon_that_dies_while_it_is_asked_is_an_error() -> None:
    async def body(world: World) -> None:
        daemon = await world.host("alice").start()
        await daemon.serving()
        async with trio.open_nursery() as nursery:

            async def kill() -> None:
                await trio.sleep(0.1)
                await daemon.host.crash()

            nursery.start_soon(kill)
            with pytest.raises(ControlError) as raised:
                await daemon.generate(PROMPT, max_tokens=300)
        assert raised.value.code == "not-running"
        with pytest.raises(ControlError):
            await daemon.status()

    run(body)


def test_bad_requests_are_control_errors() -> None:
    async def body(world: World) -> None:
        daemon = await world.host("alice").start(engine=False)
        with pytest.raises(ControlError) as raised:
            await daemon.ask("model_show", name="nothing")
        assert raised.value.code == "unknown-model" and Address.parse(str(daemon.address))

    run(body)


async def real_text(folder: Path) -> str:
    """Return the text of a real daemon with a real worker process."""
    config = NodeConfig(data=folder, listen="127.0.0.1", memory=1 << 30)
    async with trio.open_nursery() as nursery:
        node = await nursery.start(partial(run_node, RealHost(), config))
        while node.serving.phase != "serving":  # noqa: ASYNC110
            await trio.sleep(0.1)
        asked = {"op": "run", "model": "tiny", "prompt": PROMPT, "max_tokens": 24}
        data = b""
        async with await trio.open_unix_socket(str(config.folder.control_socket)) as stream:
            await stream.send_all(json.dumps(asked).encode() + b"\n")
            while piece := await stream.receive_some(65536):
                data += piece
        node.stop()
    return str(json.loads(data.splitlines()[-1])["ok"]["text"])


@pytest.mark.long
def test_with_real_weights_a_simulated_swarm_says_the_text_of_a_real_node(tmp_path: Path) -> None:
    async def body(world: World) -> str:
        *_, daemon = await three(world, tokens="model")
        return str((await daemon.generate(PROMPT, max_tokens=24))["text"])

    assert run(body) == trio.run(real_text, tmp_path)
