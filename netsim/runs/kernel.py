"""Runs a scenario with real daemons on this machine's kernel, in real time."""

import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Final, NoReturn

from ..errors import BadScenario, CannotSimulate
from ..netns import nft
from ..netns.backend import KernelWorld
from ..netns.namespaces import KernelRefused, hint_of
from ..network.link import LinkSpec
from ..scenario.expect import Wait, compare, is_complete, is_connected
from ..scenario.format import vocabulary
from ..scenario.format.links import link_spec
from ..scenario.format.metrics import Metrics, summary
from ..scenario.format.parse import moments_after
from ..scenario.format.tables import Expect, HostTable, Scenario
from ..scenario.programs.daemon import DaemonSettings
from ..scenario.result import ExpectationVerdict, HostFigures, RunResult
from ..scenario.run import Progress
from .execute import Display, versions
from .kernelfaults import KernelFaults, why_not

METRICS: Final = ("boot", "links.count", "links.pairs", "hosts.up")  # supported here
INVARIANTS: Final = ("connected", "linked")  # supported here
# Fields of a [[host]] that this backend supports.
KEPT: Final = ("name", "count", "nat", "behind", "link", "start", "program", "settings", "line")
LOOKS_EVERY: Final = 0.5  # seconds between two samples


def run_in_kernel(scenario: Scenario, path: Path, display: Display) -> RunResult:
    """Run a scenario in real time, with real daemons in network namespaces.

    `path` is the scenario's file, for messages. Raises BadScenario if this backend does not support
    a line of the scenario, and CannotSimulate if this machine does not support the backend.
    """
    refuse_unsupported(scenario, path)

    seconds = scenario.world.latency_seconds or 0.0
    try:
        with KernelWorld(latency=seconds) as world:
            run = _KernelRun(scenario, world)
            with display.progress(scenario.sim.duration, "real") as show:
                return run.go(show)
    except KernelRefused as error:
        raise CannotSimulate(str(error), hint=hint_of(error)) from None


Refuse = Callable[[int, str], NoReturn]
"""Function that raises BadScenario for a line number and a message."""


def refuse_unsupported(scenario: Scenario, path: Path) -> None:
    """Raise BadScenario for the first line that the kernel backend does not support."""

    def no(line: int, message: str) -> NoReturn:
        """Raise BadScenario about a line."""
        hint = "the simulated backend (`--backend sim`) can do it"
        raise BadScenario(message, line=line, hint=hint).of(path)

    for host in scenario.hosts:
        _refuse_host(host, no)
    if scenario.world.hosts or scenario.world.latency_seconds is None:
        no(0, "the kernel backend has no populations and no latency matrix")
    for group in scenario.groups:
        no(group.line, "the kernel backend has no [[group]]")
    for nat in scenario.nats:
        if nat.kind not in nft.KINDS or nat.extra:
            no(nat.line, f"the kernel backend has no `{nat.kind}` with such keys")

    for step in scenario.steps:
        if why := why_not(step, scenario):
            no(step.line, why)
    for expect in scenario.expects:
        known = expect.metric in METRICS or expect.metric.rpartition(".")[0] in METRICS
        if expect.metric and not known:
            no(expect.line, f"the kernel backend does not measure `{expect.metric}`")
        if (expect.invariant or "linked") not in INVARIANTS:
            no(expect.line, f"the kernel backend does not watch `{expect.invariant}`")


def _refuse_host(host: HostTable, no: Refuse) -> None:
    """Refuse a host that the kernel backend does not support."""
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
    """One run in real time.

    `kinds` and `starts` have the kind of gateway and the start time (seconds) of each host. `boots`
    has the seconds that each started daemon took to start.
    """

    def __init__(self, scenario: Scenario, world: KernelWorld) -> None:

        self.scenario = scenario
        self.world = world
        self.kinds: dict[str, str] = {}
        self.starts: dict[str, float] = {}
        """When each host starts, in seconds from the beginning of the run."""
        self.boots: dict[str, float] = {}
        self.waits = [
            Wait(expect, since)
            for expect in scenario.expects
            if expect.invariant
            for since in (moments_after(scenario.steps, expect.after) if expect.after else [0.0])
        ]
        """Expectations that wait for an event."""
        self._build()
        self.faults = KernelFaults(scenario, world, self._start)
        """The faults of the scenario, which are carried out at their times."""
        self.began = time.monotonic()

    def _build(self) -> None:
        """Create the gateways and hosts."""
        own = {link.id: link_spec(link) for link in self.scenario.links}

        def link(name: str) -> LinkSpec | None:
            """Return the link with this name, or None for an empty name."""
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
        """The seconds since the run began."""
        return time.monotonic() - self.began

    def go(self, show: Progress) -> RunResult:
        """Run to the end: start each daemon and each step at its time, and sample the links."""
        while self.now < self.scenario.sim.duration:
            for name, start in self.starts.items():
                if start <= self.now and name not in self.boots:
                    self._start(name)
            self.faults.carry_out(self.now)
            self._look()
            show(self.now)
            time.sleep(LOOKS_EVERY)
        return self._result()

    def _start(self, name: str) -> None:
        """Start a host's daemon and wait until it replies.

        The first public host is its bootstrap peer.
        """
        first = next((name for name, kind in self.kinds.items() if kind == "public"), None)
        told = () if first in (None, name) else ("--bootstrap", self.world.where(str(first)))
        began = time.monotonic()
        self.world.start(name, *told)
        self.world.wait(lambda: self.world.status(name) is not None, what=f"a status of {name}")
        self.boots[name] = time.monotonic() - began

    @property
    def _running(self) -> list[str]:
        """The names of the hosts whose daemons have started and have not crashed."""
        return [name for name in self.boots if name not in self.faults.off]

    def _links(self) -> dict[str, set[str]]:
        """Map the peer id of each daemon that replies to the peer ids of those daemons to which it
        is linked.

        Daemons that do not reply are left out.
        """
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
        """Check the invariants, and record those that hold.

        Does nothing while some daemon does not reply yet. Crashed hosts do not count.
        """
        links = self._links()
        if len(links) < len(self.kinds) - len(self.faults.off):
            return
        holds = {"connected": is_connected(links), "linked": is_complete(links)}
        for wait in self.waits:
            due = wait.reached is None and wait.since < self.now <= wait.deadline
            if due and holds[wait.expect.invariant]:
                wait.reached = self.now - wait.since

    def _result(self) -> RunResult:
        """Return the result of the run.

        It has no digest, records or packet counters, because the kernel backend does not see
        packets.
        """
        links = self._links()
        pairs = len(links) * (len(links) - 1)
        ends = sum(map(len, links.values()))
        metrics: Metrics = {
            "boot": summary(self.boots.values()),
            "hosts.up": len(links),
            "links.count": ends // 2,
            "links.pairs": ends / pairs if pairs else None,
        }
        nothing = {"sent": 0, "received": 0, "dropped": 0, "bytes_sent": 0, "bytes_received": 0}
        return RunResult(
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

    def _verdict(self, expect: Expect, metrics: Metrics) -> ExpectationVerdict:
        """Return the verdict on one expectation."""
        if expect.metric:
            return compare(expect, metrics)
        mine = [wait.reached for wait in self.waits if wait.expect is expect]
        times = [reached for reached in mine if reached is not None]
        slowest = max(times) if len(times) == len(mine) else None
        return ExpectationVerdict(
            str(expect), slowest is not None, slowest, expect.line, expect.found(slowest)
        )
