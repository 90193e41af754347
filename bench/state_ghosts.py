"""Accuracy of the member list: how long dead members stay listed, and how rarely live ones are not.

Members (`state/`, over real lanes) on simulated home computers. Each has links with a third of the
others; it knows the rest by what its peers say and by checks (docs/spec/liveness.md). The list is
`Directory.members()`, which `shoal status`, placement and routing use.

dead    one of 30 at a time ends without a word (power cut, unplugged, asleep) or is stopped, and
        comes back unchanged, as a new peer at the same address, or at once. `ok`: of all members
        that listed it, 99 % no longer do within 5 s of its last sign of life, none does after
        6 s, and no new identity is listed beside the old one.
lossy   20 members over links that lose 5 % of all packets, for both directions together, and no
        member ends. `ok`: in fewer than one of 1,000 node-hours a member is missing from a list.

`value` is the 99th percentile of the seconds for which dead members were listed. `--out FILE` keeps
one line per seed and resumes there; `--quick` is one short seed of each part.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, Final, cast

import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.faults import Faults
from shoal.netsim.host import Host
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.seeds import Figures, SeedLines
from shoal.netsim.world import World
from shoal.state.membership.membership import Membership
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.errors import DialFailed
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.identity import Identity, PeerId

MEASURES = ("state", "transport", "netsim")

PORT: Final = 4001
SETTLE_S: Final = 45.0
ENDS: Final = ("power", "unplugged", "asleep", "stopped")
RETURNS: Final = ("same", "other", "other at once", "same at once")
LOSS: Final = 0.05
GOALS: Final = {"p99_s": 5.0, "most_s": 6.0, "per_node_hour": 0.001}


class Member:
    """Program for a host: an endpoint and its membership. `seen` has every change of its list of
    members: time, peer, whether it was added.
    """

    def __init__(self, number: int, links: int, known: Sequence["Member"]) -> None:
        self.number = number
        self.life = 0
        self.links = links
        self.known = known
        self.seen: list[tuple[float, PeerId, bool]] = []
        self.listed: set[PeerId] = set()
        self.stop = trio.Event()
        self.renew()

    def renew(self) -> None:
        """Run as another peer from the next start on."""
        self.life += 1
        self.identity = Identity.from_seed((1000 * self.number + self.life).to_bytes(32))

    @property
    def peer(self) -> PeerId:
        return self.identity.peer

    async def run(self, computer: Host, *, task_status: "trio.TaskStatus[Any]") -> None:
        self.computer, self.stop, self.listed = computer, trio.Event(), set()
        async with trio.open_nursery() as nursery:
            host = SimulatedHost(computer, PROFILES["desktop"], nursery, self.life)
            self.endpoint = Endpoint(host, self.identity, admission=OpenSwarm())
            self.directory = Membership(host, self.endpoint, self.identity, links=self.links)
            await nursery.start(self.endpoint.run, "0.0.0.0", PORT)
            self.directory.publish(addresses=(str(self.address),))
            await nursery.start(self.directory.run)
            nursery.start_soon(self._look)
            for other in self.known:
                nursery.start_soon(self._reach, other)
            task_status.started(self)
            await self.stop.wait()
            nursery.cancel_scope.cancel()

    @property
    def address(self) -> Address:
        return Address(self.computer.addresses()[0], PORT, self.peer)

    async def _reach(self, other: "Member") -> None:
        while self.endpoint.link(other.peer) is None:
            with suppress(DialFailed):
                await self.endpoint.dial(other.address, timeout=5)
            await trio.sleep(1)

    async def _look(self) -> None:
        version = -1
        while True:
            version = await self.directory.changed(version)
            now, listed = trio.current_time(), set(self.directory.members())
            self.seen += [(now, peer, True) for peer in listed - self.listed]
            self.seen += [(now, peer, False) for peer in self.listed - listed]
            self.listed = listed


class Swarm:
    """`count` members, each of which dials others while it has fewer than `links` links."""

    def __init__(self, seed: int, count: int, links: int, loss: float = 0.0005) -> None:
        self.world = World(seed)
        self.faults = Faults(self.world)
        each = 1 - (1 - loss) ** 0.5  # of the two ends of a path
        home = LinkSpec(
            PipeSpec(0.008, jitter=0.004, rate=2.5e6, loss=each),
            PipeSpec(0.002, rate=12.5e6, loss=each),
        )
        self.members: list[Member] = []
        self.hosts = [self.world.host(f"n{number}", link=home) for number in range(count)]
        for number in range(count):
            self.members.append(Member(number, links, self.members[:2]))

    async def boot(self) -> None:
        """Start all members, and wait until all list each other."""
        for member, host in zip(self.members, self.hosts, strict=True):
            await host.start(member)
            await trio.sleep(0.2)
        for _ in range(120):
            if all(len(member.listed) == len(self.members) for member in self.members):
                return
            await trio.sleep(1)
        raise SystemExit("some members do not list each other")

    def linked(self) -> float:
        """Return the fraction of pairs that have a link."""
        count = len(self.members)
        links = sum(len(member.endpoint.links()) for member in self.members)
        return links / (count * (count - 1))


# The dead.


async def end(swarm: Swarm, member: Member, way: str) -> None:
    if way == "power":
        await swarm.faults.crash(member.computer)
    elif way == "unplugged":
        swarm.faults.link_down(member.computer)
    elif way == "asleep":
        swarm.faults.sleep(member.computer)
    else:
        member.stop.set()
        await member.computer.ended()


async def come_back(swarm: Swarm, member: Member, way: str, back: str) -> None:
    if "other" in back or way in ("power", "stopped"):
        if way in ("unplugged", "asleep"):
            await swarm.faults.crash(member.computer)
            if way == "unplugged":
                swarm.faults.link_up(member.computer)
            else:
                swarm.faults.resume(member.computer)
        if "other" in back:
            member.renew()
        if way == "stopped":
            await member.computer.start(member)
        else:
            await member.computer.restart()
    elif way == "unplugged":
        swarm.faults.link_up(member.computer)
    else:
        swarm.faults.resume(member.computer)


def listed_for(member: Member, peer: PeerId, since: float, until: float) -> float | None:
    """Return how long after `since` a member listed a peer; None if it did not list it at that
    time.
    """
    listed, last = False, None
    for at, who, came in member.seen:
        if who != peer or at > until:
            continue
        if at <= since:
            listed = came
        elif not came:
            last = at
            listed = False
        else:
            listed = True
    if listed:
        return until - since
    return None if last is None else last - since


def beside(member: Member, old: PeerId, new: PeerId) -> float:
    """Return how long a member listed both peers."""
    total, since = 0.0, 0.0
    there: set[PeerId] = set()
    for at, who, came in member.seen:
        if who not in (old, new):
            continue
        if len(there) == 2:
            total += at - since
        (there.add if came else there.discard)(who)
        since = at
    return total + (trio.current_time() - since if len(there) == 2 else 0.0)


def dead(seed: int, count: int, rounds: int) -> Figures:
    """Let members end and come back one after the other."""
    began = time.process_time()
    swarm = Swarm(seed, count, ceil(count / 4))
    linked: list[float] = []
    others: list[float] = []
    twice: list[float] = []
    unlisted = 0

    async def main() -> float:
        nonlocal unlisted
        await swarm.boot()
        await trio.sleep(SETTLE_S)
        share = swarm.linked()
        for turn in range(rounds):
            way, back = ENDS[turn % len(ENDS)], RETURNS[turn // len(ENDS) % len(RETURNS)]
            victim = swarm.members[2 + (7 * turn) % (count - 2)]
            watching = [member for member in swarm.members if member is not victim]
            near = {m.number for m in watching if m.endpoint.link(victim.peer) is not None}
            peer, since = victim.peer, trio.current_time()
            await end(swarm, victim, way)
            until = since + 12.0
            if "at once" not in back:
                await trio.sleep(12.0)
            else:
                await trio.sleep(0.5)
                until = trio.current_time() if "same" in back else until
            await come_back(swarm, victim, way, back)
            await trio.sleep(SETTLE_S)
            for member in watching:
                seconds = listed_for(member, peer, since, until)
                if seconds is not None and not ("same" in back and "at once" in back):
                    (linked if member.number in near else others).append(seconds)
                if victim.peer != peer:
                    twice.append(beside(member, peer, victim.peer))
                unlisted += victim.peer not in member.listed
        return share

    share = swarm.world.run(main)
    return {
        "share_linked": share,
        "linked": [round(x, 3) for x in linked],
        "others": [round(x, 3) for x in others],
        "twice_s": max(twice, default=0.0),
        "unlisted": unlisted,
        "cpu_s": time.process_time() - began,
    }


# The healthy.


def lossy(seed: int, count: int, hours: float) -> Figures:
    began = time.process_time()
    swarm = Swarm(seed, count, ceil(count / 4), LOSS)
    lost: list[float] = []

    async def main() -> float:
        await swarm.boot()
        await trio.sleep(SETTLE_S)
        for member in swarm.members:
            member.seen.clear()
        start = trio.current_time()
        await trio.sleep(3600 * hours)
        for member in swarm.members:
            lost.extend(at - start for at, _, came in member.seen if not came)
        return swarm.linked()

    share = swarm.world.run(main)
    return {
        "share_linked": share,
        "node_hours": count * hours,
        "suspected": len(lost),
        "cpu_s": time.process_time() - began,
    }


# Results.


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else 0.0


def result_of(ends: Sequence[Figures], losses: Sequence[Figures]) -> dict[str, Any]:
    linked = [x for each in ends for x in each["linked"]]
    others = [x for each in ends for x in each["others"]]
    together = linked + others
    hours = sum(each["node_hours"] for each in losses)
    rate = sum(each["suspected"] for each in losses) / hours
    p99, most = percentile(together, 0.99), max(together)
    twice = max(each["twice_s"] for each in ends)
    unlisted = sum(each["unlisted"] for each in ends)
    return {
        "name": "state_ghosts",
        "value": p99,
        "goal": GOALS["p99_s"],
        "ok": p99 <= GOALS["p99_s"]
        and most <= GOALS["most_s"]
        and rate < GOALS["per_node_hour"]
        and twice == 0.0
        and unlisted == 0,
        "ends": len(together),
        "p50_s": percentile(together, 0.5),
        "most_s": most,
        "linked_p99_s": percentile(linked, 0.99),
        "others_p99_s": percentile(others, 0.99),
        "twice_s": twice,
        "not_back": unlisted,
        "suspected_per_node_hour": rate,
        "node_hours": hours,
        "seeds": {"dead": len(ends), "healthy": len(losses)},
        "share_linked": round(ends[0]["share_linked"], 3),
        "cpu_s": round(sum(each["cpu_s"] for each in (*ends, *losses)), 1),
    }


def measure(work: Any, seeds: int, settings: Figures, path: Path | None, jobs: int) -> Any:
    """Return one line per seed, several in parallel."""
    ledger = SeedLines(path, settings)
    missing = [seed for seed in range(seeds) if seed not in ledger]
    with ProcessPoolExecutor(jobs) as pool:
        running = {seed: pool.submit(work, seed) for seed in missing}
        for seed, future in running.items():
            ledger.add(seed, future.result())
            print(f"{settings['part']}: seed {seed} done", file=sys.stderr, flush=True)
    return ledger.figures(range(seeds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short seed of each part")
    parser.add_argument("--out", type=Path, help="keep one line per seed here, and resume")
    parser.add_argument("--seeds", type=int, default=20, help="of the dead (20)")
    parser.add_argument("--lossy", type=int, default=30, help="seeds of the healthy (30)")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="seeds in parallel")
    args = parser.parse_args()
    ending = (20, 8) if args.quick else (30, 32)
    losing = (20, 0.5) if args.quick else (20, 4.0)
    seeds = (1, 1) if args.quick else (max(args.seeds, 1), max(args.lossy, 1))
    ends, losses = (
        measure(
            partial(cast(Callable[..., Any], work), **dict(zip(names, sizes, strict=True))),
            count,
            {"bench": "state_ghosts", "part": work.__name__, "sizes": list(sizes)},
            args.out,
            args.jobs,
        )
        for work, names, sizes, count in (
            (dead, ("count", "rounds"), ending, seeds[0]),
            (lossy, ("count", "hours"), losing, seeds[1]),
        )
    )
    result = result_of(ends, losses)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
