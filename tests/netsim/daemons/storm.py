"""A storm over a swarm of daemons: faults of all kinds at random instants, then a quiet period.

`Storm(seed)` draws the swarm and its faults. `run` returns what is wrong afterwards, which is
nothing if the daemon is correct.
"""

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import trio

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.daemons.host import new_disk
from shoal.netsim.faults import Faults
from shoal.netsim.host import Host
from shoal.netsim.network.link import Burst, LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.node.errors import ControlError
from shoal.state.feeds.committer import FILE
from shoal.transport.address import Address
from shoal.transport.errors import ShoalError

NATS = ("linux-drop", "linux-random", "full-cone", "port-restricted", "adm-apdf", "cgn")
FILES = ("peers", "pid", "lock", "machine.json", "models/library.json", "control.sock")
QUIET_S = 660.0  # a failed dial is repeated after up to 375 s; a foreign epoch is shown for 600 s
PROMPT = "Once upon a time"


class Life(Daemon):
    """Daemon that records how each of its runs ended."""

    handle: DaemonHandle | None = None
    ends: list[BaseException]

    async def run(self, host: Host, *, task_status: "trio.TaskStatus[Any]") -> None:
        status = _Noted(self, task_status)
        try:
            await super().run(host, task_status=status)
        except Exception as error:  # noqa: BLE001 (all of it is looked at)
            if host.up:
                self.ends.append(error)
        finally:
            self.handle = None
            status.once(None)


class _Noted:
    """Task status of a run: records the handle, and is started without one if the run ends
    early.
    """

    def __init__(self, life: Life, inner: "trio.TaskStatus[Any]") -> None:
        self._life = life
        self._inner: trio.TaskStatus[Any] | None = inner

    def started(self, value: Any = None) -> None:
        self._life.handle = value
        self.once(value)

    def once(self, value: Any) -> None:
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.started(value)


def leaves(error: BaseException) -> list[BaseException]:
    """Return the exceptions in nested groups."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for item in error.exceptions for leaf in leaves(item)]
    return [error]


def _link(random: Random) -> LinkSpec:
    up, down, delay = random.choice([(1e6, 5e6, 0.02), (10e6, 50e6, 0.008), (50e6, 50e6, 0.003)])
    burst = Burst(0.002, 0.2, 0.3) if random.random() < 0.3 else None
    byte_stream = PipeSpec(
        rate=up / 8, delay=delay, jitter=delay / 4, loss=random.choice([0, 0.005, 0.02])
    )
    return LinkSpec(
        up=replace(byte_stream, burst=burst) if burst else byte_stream,
        down=replace(byte_stream, rate=down / 8),
    )


class Storm:
    """One swarm: `nodes` daemons, the first public and with all layers; the rest are drawn."""

    def __init__(self, seed: int, *, nodes: int | None = None, seconds: float = 90.0) -> None:
        self.world = World(seed=seed)
        self.faults = Faults(self.world)
        self.random = Random(seed)
        self.seconds = seconds
        self.wrong: list[str] = []
        self.lives: dict[str, Life] = {}
        self.peers: dict[str, str] = {}
        self.site: dict[str, str] = {}  # by host: its gateway's name, or "" on the internet
        self.excused: set[str] = set()  # hosts whose disk lied to them
        self._nodes = nodes or self.random.randint(5, 9)

    def run(self) -> list[str]:
        """Run the storm; return what is wrong in the end."""
        self.world.run(self._main)
        return self.wrong

    async def _main(self) -> None:
        with trio.move_on_after(self.seconds + QUIET_S + 600) as scope:
            async with trio.open_nursery() as nursery:
                await self._begin(nursery)
                await self._rage(nursery)
                nursery.cancel_scope.cancel()
            await self._calm()
            await trio.sleep(QUIET_S)
            await self._look()
        if scope.cancelled_caught:
            self.wrong.append("it hangs")

    # The swarm.

    async def _begin(self, nursery: trio.Nursery) -> None:
        random, world = self.random, self.world
        first = world.host("h0", link=_link(random))
        self._life(first, "", layers=(0, 6))
        await self._boot(first)
        life = self.lives["h0"]
        assert life.handle is not None
        address = life.handle.address
        gateways = [
            world.gateway(f"g{number}", random.choice(NATS), link=_link(random))
            for number in range(random.randint(1, 3))
        ]
        neighbours: dict[str, list[Address]] = {}
        for number in range(1, self._nodes):
            name, behind = f"h{number}", random.choice([None, *gateways])
            host = world.host(name, behind=behind, link=_link(random) if behind is None else None)
            more: dict[str, Any] = {"engine": random.random() < 0.7}
            if random.random() < 0.5:
                more |= {"model": "tiny", "layers": random.choice([(0, 3), (3, 6), (0, 6)])}
            site = "" if behind is None else behind.name  # a gateway without sessions is false
            near = neighbours.setdefault(site, []) if site else []
            # A public node announces no private addresses: neighbours are configured by hand.
            self._life(host, site, bootstrap=[address, *near[:1]], **more)
            near.append(Address(host.addresses()[0], 4001))
            nursery.start_soon(self._boot, host)
        await trio.sleep(random.uniform(0.0, 5.0))

    def _life(self, host: Host, site: str, **settings: Any) -> None:
        life = Life(**settings)
        life.ends = []
        host.program = life
        host.disk = new_disk(host, life.profile)
        self.lives[host.name], self.site[host.name] = life, site

    async def _boot(self, host: Host) -> None:
        """Start a daemon, or start it again; its state is checked later."""
        try:
            if host.running or not host.up:
                await self.faults.restart(host)
            else:
                await host.start(host.program)
        except RuntimeError as error:  # it was killed before it had started
            if "without calling" not in str(error):
                raise
        handle = self.lives[host.name].handle
        if handle is not None:
            before = self.peers.setdefault(host.name, handle.peer)
            if before != handle.peer and host.name not in self.excused:
                self.wrong.append(f"{host.name} became another peer")

    # The faults.

    async def _rage(self, nursery: trio.Nursery) -> None:
        deeds: list[Callable[[Host], Any]] = [
            self._crash, self._crash, self._sleep, self._clock, self._partition, self._unplug,
            self._redial, self._full, self._read_only, self._failing, self._lying, self._ask,
            self._ask, self._stop, self._engine,
        ]  # fmt: skip
        end = trio.current_time() + self.seconds
        hosts = list(self.world.hosts.values())
        while trio.current_time() < end:
            deed, host = self.random.choice(deeds), self.random.choice(hosts)
            nursery.start_soon(deed, host)
            await trio.sleep(self.random.choice([0.01, 0.1, 1.0, 4.0]) * self.random.random())
        await trio.sleep(20)

    async def _wait(self, most: float = 8.0) -> None:
        await trio.sleep(self.random.random() ** 3 * most)

    async def _crash(self, host: Host) -> None:
        if not host.up:  # a sleeping host may lose power too
            return
        await self.faults.crash(host)
        await self._wait()
        if not host.up:
            await self._boot(host)

    async def _stop(self, host: Host) -> None:
        handle = self.lives[host.name].handle
        if handle is None or self.faults.asleep(host):
            return
        handle.node.stop()
        with trio.move_on_after(60):
            await host.ended()
            await self._wait()
            if host.up and not host.running:
                await self._boot(host)

    async def _sleep(self, host: Host) -> None:
        if not host.up or self.faults.asleep(host):
            return
        self.faults.sleep(host)
        await self._wait(40)
        if self.faults.asleep(host):
            self.faults.resume(host)

    async def _clock(self, host: Host) -> None:
        self.faults.step_clock(host, seconds=self.random.choice([-86400, 86400, -5, 5]))

    async def _partition(self, host: Host) -> None:
        names = list(self.world.hosts)
        part = self.random.sample(names, self.random.randint(1, len(names) - 1))
        rest = [name for name in names if name not in part]
        rules = self.faults.partition(part, rest, oneway=self.random.random() < 0.3)
        await self._wait(30)
        self.faults.heal(*rules)

    async def _unplug(self, host: Host) -> None:
        who = self.site[host.name] or host.name
        self.faults.link_down(who)
        await self._wait(20)
        self.faults.link_up(who)

    async def _redial(self, host: Host) -> None:
        if self.site[host.name]:
            self.faults.redial(self.site[host.name])

    async def _full(self, host: Host) -> None:
        assert host.disk is not None
        spec = self.lives[host.name].profile.disk
        host.disk.spec = replace(spec, capacity=host.disk.used + self.random.randint(0, 1 << 21))
        await self._wait(20)
        host.disk.spec = spec

    async def _read_only(self, host: Host) -> None:
        assert host.disk is not None
        host.disk.read_only = True
        await self._wait()
        host.disk.read_only = False

    async def _failing(self, host: Host) -> None:
        assert host.disk is not None
        path = f"/shoal/{self.random.choice(FILES)}"
        host.disk.errors[path] = errno.EIO
        await self._wait()
        host.disk.errors.pop(path, None)

    async def _lying(self, host: Host) -> None:
        """Let syncs do nothing for a while, then cut the power."""
        assert host.disk is not None
        host.disk.lost_syncs = True
        await self._wait()
        self.excused.add(host.name)
        await self._crash(host)
        host.disk.lost_syncs = False

    async def _engine(self, host: Host) -> None:
        handle = self.lives[host.name].handle
        if handle is not None and handle.node.base.engine is not None:
            handle.engine.crash()

    async def _ask(self, host: Host) -> None:
        handle = self.lives[host.name].handle
        if handle is not None:
            with suppress(ControlError), trio.move_on_after(60):
                await handle.generate(PROMPT, max_tokens=self.random.randint(1, 60))

    # Afterwards.

    async def _calm(self) -> None:
        """Repair everything, and restart daemons that have ended."""
        faults = self.faults
        faults.heal()
        for host in self.world.hosts.values():
            if faults.asleep(host):
                faults.resume(host)
            faults.link_up(host)
            disk = host.disk
            assert disk is not None
            disk.spec, disk.read_only, disk.lost_syncs = (
                self.lives[host.name].profile.disk,
                False,
                False,
            )
            disk.errors.clear()
        for gateway in self.world.gateways.values():
            faults.link_up(gateway)
        await trio.sleep(1)
        for host in self.world.hosts.values():
            await self._mend(host)

    async def _mend(self, host: Host) -> None:
        """Act as the owner: start the daemon again, and remove what it reports as damaged."""
        life = self.lives[host.name]
        for _ in range(4):
            if not host.running:
                await self._boot(host)
            with trio.move_on_after(30):
                while host.running and life.handle is None:  # noqa: ASYNC110
                    await trio.sleep(0.1)
            if life.handle is not None:
                return
            ends = leaves(life.ends[-1]) if life.ends else []
            for end in ends:
                if host.name in self.excused and isinstance(end, ShoalError):
                    self._remove_named(host, end)
        self.wrong.append(f"{host.name} does not start: {life.ends[-1:]!r}")

    def _remove_named(self, host: Host, error: ShoalError) -> None:
        """Remove the file that a hint names."""
        for path in ("identity.key", "models/library.json"):
            if f"/shoal/{path}" in error.message and "rm " in str(error.hint):
                disk: Any = host.disk
                folder = disk.root.names["shoal"]
                *above, name = path.split("/")
                for part in above:
                    folder = folder.names[part]
                folder.names.pop(name, None)
                if name == "identity.key":
                    self.peers.pop(host.name, None)

    async def _look(self) -> None:
        self._look_at_ends()
        for name, life in self.lives.items():
            handle = life.handle
            if handle is None:
                self.wrong.append(f"{name} does not run in the end")
                continue
            with trio.move_on_after(10) as scope:
                await handle.ask("ping")
            if scope.cancelled_caught:
                self.wrong.append(f"{name} does not answer on its control socket")
            for condition in handle.node.health.conditions():
                lied = name in self.excused and condition.name == FILE  # damaged, as it reports
                if condition.name != "restarts" and not lied:
                    self.wrong.append(f"{name} still says: {condition.sentence}")
            if handle.peer != self.peers.get(name):
                self.wrong.append(f"{name} is another peer")
        self._look_at_links()
        for name, life in self.lives.items():
            if life.handle is not None:
                await self._look_at_answers(name, life.handle)

    def _look_at_ends(self) -> None:
        """Check that daemons ended only with errors of ours, which have a hint."""
        for name, life in self.lives.items():
            for end in life.ends:
                for leaf in leaves(end):
                    if not isinstance(leaf, ShoalError) or not leaf.hint:
                        self.wrong.append(f"{name} ended with {leaf!r}")

    def _look_at_links(self) -> None:
        """Check that all daemons that can reach each other are linked, and that none lists a dead
        one.
        """
        alive = {life.handle.peer: n for n, life in self.lives.items() if life.handle is not None}
        for name, life in self.lives.items():
            if life.handle is None:
                continue
            members = set(life.handle.node.directory.members())
            for ghost in members - set(alive):
                self.wrong.append(f"{name} lists {ghost[-6:]}, which is not running")
            for peer, other in alive.items():
                near = self.site[name] == self.site[other]  # all know their first neighbour
                open_ = not self.site[name] or not self.site[other]
                if peer not in members and (near or open_):
                    self.wrong.append(f"{name} is not linked with {other}")

    async def _look_at_answers(self, name: str, handle: DaemonHandle) -> None:
        try:
            with trio.fail_after(120):
                said = await handle.generate(PROMPT, max_tokens=4)
            if not said["text"]:
                self.wrong.append(f"{name} is answered with nothing")
        except (ControlError, trio.TooSlowError) as error:
            self.wrong.append(f"{name} gets no answer: {error!r}")
