"""`shoal sim calibrate`, and scenarios with real daemons on this machine's kernel."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import render
from ..errors import CommandError

if TYPE_CHECKING:
    from ...netsim.netns.backend import KernelWorld
    from ...netsim.scenario.format.tables import Expect, HostTable, Scenario
    from ...netsim.scenario.result import Result

METRICS = ("boot", "links.count", "links.pairs", "hosts.up")
INVARIANTS = ("connected", "linked")
KEPT = ("name", "count", "nat", "behind", "link", "start", "program", "settings", "line")
LOOKS_EVERY = 0.5  # seconds


def calibration(kernel: bool) -> dict[str, Any]:
    """Compare the simulated NATs with the stored answers and, with `kernel`, this kernel as well.

    Raises CommandError if this machine's kernel cannot be probed.
    """
    from ...netsim.nat.probes.lab import SimLab
    from ...netsim.netns import calibrate

    stored = calibrate.golden()
    simulated = {kind: SimLab(kind).run() for kind in stored}
    found: dict[str, Any] = {
        "kinds": sorted(stored),
        "probes": sum(map(len, simulated.values())),
        "differences": [str(item) for item in calibrate.compare(simulated, stored)],
        "kernel": "not asked for",
    }
    if kernel:
        found["differences"] += _with_kernel(stored)
        found["kernel"] = "probed"
    return found


def _with_kernel(stored: Any) -> list[str]:
    from ...netsim.netns import calibrate
    from ...netsim.netns.namespaces import KernelRefused

    try:
        table = calibrate.calibrate(tuple(stored), say=_progress)
    except KernelRefused as error:
        raise CommandError("cannot-simulate", str(error), hint=_hint(str(error))) from None
    return [
        f"{item.kind}: {item.probe} is {item.simulated!r} in this kernel, stored {item.golden!r}"
        for item in calibrate.compare(table, stored)
    ]


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr)


def _hint(reason: str) -> str:
    if "needs root" in reason or "not permitted" in reason:
        return "run it as root, or in a container with NET_ADMIN and SYS_ADMIN"
    return "the simulated backend (`--backend sim`) works without the kernel"


def words(found: dict[str, Any]) -> str:
    """Format the comparison for a person."""
    lines = [render.safe(line, 300) for line in found["differences"]]
    lines.append(
        f"{len(found['differences'])} differences in {found['probes']} answers of "
        f"{len(found['kinds'])} kinds; this machine's kernel: {found['kernel']}"
    )
    return "\n".join(lines)


def run_in_kernel(scenario: "Scenario", path: Path) -> "Result":
    """Run a scenario in real time, with real daemons in network namespaces.

    Raises CommandError if this backend cannot do a line of the scenario, or if this machine does
    not support the backend.
    """
    _refuse_unsupported(scenario, path)
    from ...netsim.netns.backend import KernelWorld
    from ...netsim.netns.namespaces import KernelRefused

    seconds = scenario.world.latency_seconds or 0.0
    try:
        with KernelWorld(latency=seconds) as world:
            return _KernelRun(scenario, world).go()
    except KernelRefused as error:
        raise CommandError("cannot-simulate", str(error), hint=_hint(str(error))) from None


def _refuse_unsupported(scenario: "Scenario", path: Path) -> None:
    from ...netsim.errors import BadScenario
    from ...netsim.netns import nft
    from .run import refused

    def no(line: int, message: str) -> None:
        hint = "the simulated backend (`--backend sim`) can do it"
        raise refused(path, BadScenario(message, line=line, hint=hint))

    for host in scenario.hosts:
        _refuse_host(host, no)
    if scenario.world.hosts or scenario.world.latency_seconds is None:
        no(0, "the kernel backend has no populations and no latency matrix")
    for group in scenario.groups:
        no(group.line, "the kernel backend has no [[group]]")
    for nat in scenario.nats:
        if nat.kind not in nft.KINDS or nat.extra:
            no(nat.line, f"the kernel backend has no `{nat.kind}` with such keys")
    from .faults import why_not

    for step in scenario.steps:
        if why := why_not(step, scenario):
            no(step.line, why)
    for expect in scenario.expects:
        if expect.metric and expect.metric.partition(".p")[0] not in METRICS:
            no(expect.line, f"the kernel backend does not measure `{expect.metric}`")
        if (expect.invariant or "linked") not in INVARIANTS:
            no(expect.line, f"the kernel backend does not watch `{expect.invariant}`")


def _refuse_host(host: "HostTable", no: Any) -> None:
    from dataclasses import fields

    from ...netsim.netns import nft
    from ...netsim.scenario.programs.daemon import DaemonSettings

    if host.program != "daemon":
        no(host.line, f"the kernel backend runs daemons, not `{host.program}`")
    for item in fields(host):
        if item.name not in KEPT and getattr(host, item.name) != item.default:
            no(host.line, f"`{item.name}` has no effect in the kernel backend")
    if host.settings != DaemonSettings():
        no(host.line, "the kernel backend runs daemons with no `settings`")
    if host.nat and host.nat not in nft.KINDS and "-" in host.nat:
        no(host.line, f"the kernel backend has no gateway of kind `{host.nat}`")


class _KernelRun:
    """One run in real time."""

    def __init__(self, scenario: "Scenario", world: "KernelWorld") -> None:
        from ...netsim.scenario.expect import Wait
        from ...netsim.scenario.format.parse import moments_after
        from .faults import KernelFaults

        self.scenario = scenario
        self.world = world
        self.kinds: dict[str, str] = {}
        self.starts: dict[str, float] = {}
        self.boots: dict[str, float] = {}
        self.waits = [
            Wait(expect, since)
            for expect in scenario.expects
            if expect.invariant
            for since in (moments_after(scenario.steps, expect.after) if expect.after else [0.0])
        ]
        self._build()
        self.faults = KernelFaults(scenario, world, self._start)
        self.began = time.monotonic()

    def _build(self) -> None:
        from ...netsim.scenario.format import vocabulary
        from ...netsim.scenario.format.links import link_spec

        own = {link.id: link_spec(link) for link in self.scenario.links}

        def link(name: str) -> Any:
            return own.get(name) or (vocabulary.profile(name) if name else None)

        kinds = {nat.id: nat.kind for nat in self.scenario.nats}
        for nat in self.scenario.nats:
            self.world.gateway(nat.id, nat.kind, behind=nat.behind or None, link=link(nat.link))
        for table in self.scenario.hosts:
            for name in table.names():
                gateway = table.nat or None
                if gateway is not None and gateway not in kinds:
                    gateway = f"{name}-gateway"
                    self.world.gateway(
                        gateway, table.nat, behind=table.behind or None, link=link(table.link)
                    )
                plug = None if gateway else link(table.link)
                self.world.host(name, behind=gateway, link=plug)
                self.kinds[name] = kinds.get(table.nat, table.nat) or "public"
                self.starts[name] = table.start

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def go(self) -> "Result":
        """Start each daemon at its time, and sample their links until the end."""
        from .run import VirtualTime

        shown = VirtualTime(self.scenario.sim.duration, what="real")
        with shown.showing():
            while self.now < self.scenario.sim.duration:
                for name, start in self.starts.items():
                    if start <= self.now and name not in self.boots:
                        self._start(name)
                self.faults.carry_out(self.now)
                self._look()
                shown(self.now)
                time.sleep(LOOKS_EVERY)
        return self._result()

    def _start(self, name: str) -> None:
        first = next((name for name, kind in self.kinds.items() if kind == "public"), None)
        told = () if first in (None, name) else ("--bootstrap", self.world.where(str(first)))
        began = time.monotonic()
        self.world.start(name, *told)
        self.world.wait(lambda: self.world.status(name) is not None, what=f"a status of {name}")
        self.boots[name] = time.monotonic() - began

    @property
    def _running(self) -> list[str]:
        return [name for name in self.boots if name not in self.faults.off]

    def _links(self) -> dict[str, set[str]]:
        """Return the linked peers of each daemon that answers, by peer id."""
        found = {}
        for name in self._running:
            status = self.world.status(name)
            if status is not None:
                peers = self.world.peers(name)
                found[status["peer"]] = {
                    item["peer"] for item in peers if item["linked_s"] is not None
                }
        return {peer: linked & found.keys() for peer, linked in found.items()}

    def _look(self) -> None:
        from ...netsim.scenario.expect import is_complete, is_connected

        links = self._links()
        if len(links) < len(self.kinds) - len(self.faults.off):
            return
        holds = {"connected": is_connected(links), "linked": is_complete(links)}
        for wait in self.waits:
            due = wait.reached is None and wait.since < self.now <= wait.deadline
            if due and holds[wait.expect.invariant]:
                wait.reached = self.now - wait.since

    def _result(self) -> "Result":
        from ...netsim.scenario.format.metrics import summary
        from ...netsim.scenario.result import HostFigures, Result
        from .run import versions

        links = self._links()
        pairs = len(links) * (len(links) - 1)
        ends = sum(map(len, links.values()))
        metrics: dict[str, Any] = {
            "boot": summary(self.boots.values()),
            "hosts.up": len(links),
            "links.count": ends // 2,
            "links.pairs": ends / pairs if pairs else None,
        }
        nothing = {"sent": 0, "received": 0, "dropped": 0, "bytes_sent": 0, "bytes_received": 0}
        return Result(
            name=self.scenario.sim.name, seed=0, duration=self.scenario.sim.duration,
            virtual=self.now, real=self.now, digest="", records=0, ended="done",
            metrics=metrics, samples={"boot": sorted(self.boots.values())},
            hosts=[HostFigures(name, kind, "daemon", 0, name in self._running, dict(nothing))
                   for name, kind in self.kinds.items()],
            pairs={"what": "linked", "classes": [], "cells": []},
            happenings=self.faults.happenings,
            verdicts=[self._verdict(expect, metrics) for expect in self.scenario.expects],
            versions=versions(),
        )  # fmt: skip

    def _verdict(self, expect: "Expect", metrics: dict[str, Any]) -> Any:
        from ...netsim.scenario.expect import compare
        from ...netsim.scenario.result import Verdict

        if expect.metric:
            return compare(expect, metrics)
        mine = [wait.reached for wait in self.waits if wait.expect is expect]
        times = [reached for reached in mine if reached is not None]
        slowest = max(times) if len(times) == len(mine) else None
        return Verdict(
            str(expect), slowest is not None, slowest, expect.line, expect.found(slowest)
        )
