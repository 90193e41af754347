"""The daemon's interface to the world on a simulated computer."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.host import OFFLOAD_S, SimulatedHost, connect_local
from shoal.netsim.daemons.profile import PROFILES, profile_of
from shoal.netsim.errors import BadScenario, NotSimulated
from shoal.netsim.host import Host
from shoal.netsim.world import World
from shoal.node.daemon.embedded import embedded_folder
from shoal.tasks.hardware.defaults import RECORD_BYTES
from shoal.tasks.hardware.hardware import Hardware
from shoal.tasks.hardware.record import store_report
from shoal.tasks.hardware.signs import look
from shoal.tasks.text.process import ModelFiles, TextProcess

PROFILE = PROFILES["raspberry"]


def on_host(body: Callable[[SimulatedHost], Awaitable[Any]], *, seed: int = 1) -> Any:
    world = World(seed=seed)
    host = world.host("alice")

    async def main() -> Any:
        async with trio.open_nursery() as nursery:
            result = await body(SimulatedHost(host, PROFILE, nursery))
            nursery.cancel_scope.cancel()
        return result

    return world.run(main)


def test_the_reported_machine() -> None:
    async def body(host: SimulatedHost) -> bytes:
        assert host.machine() == PROFILE.machine
        assert [item.name for item in host.interfaces()] == ["lo", "lo", "eth0"]
        assert host.now() == 0 and host.wall() > 1.8e9
        assert host.pid() == 1000 and host.next_pid() == 1001
        return host.entropy(16)

    assert on_host(body) == on_host(body) != on_host(body, seed=2)


def test_offloaded_work_takes_the_disks_time() -> None:
    async def body(host: SimulatedHost) -> None:
        assert await host.offload(lambda: 7) == 7
        assert host.now() == pytest.approx(OFFLOAD_S)
        await host.offload(host.files.write, Path("/file"), bytes(3_000_000))
        spec = PROFILE.disk
        expected = 3_000_000 / spec.write_rate + 2 * spec.sync_s
        assert host.now() == pytest.approx(expected, rel=0.05)
        with trio.CancelScope() as scope:
            scope.cancel()
            await host.offload(host.files.write, Path("/other"), b"x")
        assert host.files.size(Path("/other")) is None, "no work begins after a cancellation"
        before = host.now()
        with trio.move_on_after(0.001) as scope:
            await host.offload(host.files.write, Path("/other"), b"x")
        assert host.now() - before > 2 * spec.sync_s, "and work that has begun is not interrupted"

    on_host(body)


class Writing:
    """Program that writes all the time."""

    async def run(self, host: Host, *, task_status: "trio.TaskStatus[SimulatedHost]") -> None:
        async with trio.open_nursery() as nursery:
            world = SimulatedHost(host, PROFILE, nursery)
            task_status.started(world)
            while True:
                await world.offload(world.files.write, Path("/file"), bytes(30_000_000))


def test_a_crash_does_not_wait_for_threads() -> None:
    world = World(seed=1)
    host = world.host("alice")

    async def main() -> float:
        await host.start(Writing())
        await trio.sleep(0.1)
        await host.crash()
        return trio.current_time()

    assert world.run(main) == pytest.approx(0.1)


def test_only_known_programs_can_be_started() -> None:
    async def body(host: SimulatedHost) -> None:
        with pytest.raises(NotSimulated, match=r"alice.*`os`"):
            await host.spawn("os", [], {})

    on_host(body)


def test_text_equals_that_of_the_real_child() -> None:
    folder = embedded_folder()
    files = ModelFiles("tiny", (folder / "tokenizer.json").read_bytes())

    async def body(host: SimulatedHost) -> list[int]:
        async with trio.open_nursery() as nursery:
            process = TextProcess(host, files)
            info = await nursery.start(process.run)
            assert info.vocabulary > 1000
            ids = await process.encode("The sea is")
            detokenizer = await process.detokenizer()
            delta = await detokenizer.push(*ids)
            assert "The sea is" in delta.text + await detokenizer.finish()
            nursery.cancel_scope.cancel()
        return ids

    assert on_host(body) == on_host(body)


def test_a_command_reaches_the_control_socket() -> None:
    async def body(host: SimulatedHost) -> bytes:
        path = Path("/shoal/control.sock")
        listener = await host.listen_local(path)
        listener = await host.listen_local(path)  # a stale socket is replaced
        async with trio.open_nursery() as nursery:

            async def answer() -> None:
                stream = await listener.accept()
                await stream.send_all(await stream.receive_some(10))
                await stream.aclose()

            nursery.start_soon(answer)
            stream = await connect_local(host.host, path)
            await stream.send_all(b"hello")
            heard = bytes(await stream.receive_some(10))
        await host.offload(host.files.remove, path)
        with pytest.raises(FileNotFoundError):
            await connect_local(host.host, path)
        return heard

    assert on_host(body) == b"hello"


def test_the_embedded_model_is_installed() -> None:
    async def body(host: SimulatedHost) -> None:
        folder = embedded_folder()
        names = [entry.name for entry in host.files.list(folder)]
        assert "config.json" in names and "model.safetensors" in names
        with pytest.raises(OSError):
            host.files.write(folder / "config.json", b"{}")

    on_host(body)


def test_a_simulated_machine_has_measured_itself_before() -> None:
    async def body(host: SimulatedHost) -> None:
        folder = Path("/shoal")
        host.files.make_folder(folder)
        store_report(host, folder, look(host).fingerprint, PROFILE.report)
        hardware = await Hardware.load(host, folder)
        (device,) = hardware.capacity.devices
        assert (device.float32, device.bandwidth) == (
            PROFILE.speed.float32,
            PROFILE.speed.bandwidth,
        )
        assert hardware.capacity.load_rate == PROFILE.disk.read_rate
        assert not hardware.measurable
        assert host.now() < 0.1
        (entry,) = host.files.list(folder)
        assert entry.size < RECORD_BYTES

    on_host(body)


def test_profiles() -> None:
    for profile in PROFILES.values():
        assert profile.offered <= profile.machine.memory_total
        assert profile.machine.memory_available < profile.machine.memory_total
        assert replace(profile, name="x") != profile
    with pytest.raises(BadScenario):
        profile_of("mainframe")


def test_the_daemon_sees_its_own_wall_clock_run_away() -> None:
    async def body(host: SimulatedHost) -> tuple[float, float]:
        began = host.wall(), host.now()
        host.host.wall_offset, host.host.wall_drift = 30.0, 0.5
        await trio.sleep(10)
        return host.wall() - began[0], host.now() - began[1]

    assert on_host(body) == (30.0 + 10 * 1.5, 10.0)
