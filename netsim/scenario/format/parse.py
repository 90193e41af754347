"""Parser of scenario files: `parse(text) -> Scenario`. It does no I/O.

Checks every key and value. Refuses anything that is unknown, malformed or without effect: raises
BadScenario with its line.
"""

from collections.abc import Sequence

from ...errors import BadScenario
from . import actions, metrics, units, vocabulary
from .actions import Action
from .groups import GroupTables
from .places import Beside
from .positions import Path
from .source import SourceDocument
from .tables import (
    Churn,
    Expect,
    GroupTable,
    HostTable,
    LinkTable,
    NatTable,
    Scenario,
    Sim,
    StepTable,
    WorldTable,
)

# The tables that a file can have at its top level.
TOP = ("sim", "world", "nat", "host", "group", "link", "step", "churn", "expect")


def nothing_beside(name: str) -> str:
    """Raise BadScenario for any file name. Used for a scenario that is not in a folder."""
    raise BadScenario(f"there is no file `{name}`")


def parse(text: str, *, hosts: int | None = None, beside: Beside = nothing_beside) -> Scenario:
    """Parse the text of a file. Raises BadScenario if anything in the file is wrong.

    If `hosts` is given, it replaces `hosts` of [world]. `beside` returns the text of a file in the
    scenario's folder, by name.
    """
    source = SourceDocument.parse(text)
    if hosts is not None:
        world = source.table(("world",), source.data.get("world", {}))
        if "hosts" not in world:
            source.refuse((), "this scenario has no population to scale", "leave `--hosts` out")
        world["hosts"] = hosts
    for name in source.data:
        if name not in TOP:
            source.unknown((name,), "table", name, TOP)
    return _Parser(source, beside).scenario(text)


class _Parser(GroupTables):
    """Parser of all tables. Its base classes parse the static part, from [sim] to [[group]]."""

    def scenario(self, text: str) -> Scenario:
        """Parse and check the whole document, whose text is `text`."""
        sim = self.sim()
        links = self.links()
        world = self.world()
        nats = self.nats(links)
        hosts = self.hosts(links, nats)
        groups = self.drawn_groups(world, links)
        self.targets_of_settings()
        self.sizes(world)
        if not self.names and not world.hosts:
            self.source.refuse((), "there is no host", "add a [[host]], or [world] hosts = 10")
        self.unused(links, nats, hosts, groups)
        self.starts(sim, world, hosts)
        steps = tuple(self.step(path, data, sim) for path, data in self.source.tables("step"))
        self.unused_groups(groups, steps)
        churn = self.churn(world)
        programs = set(self.programs.values())
        self.relays(world, programs)
        expects = self.expects(sim, steps, programs)
        return Scenario(
            sim, world, nats, links, hosts, groups, steps, churn, expects, text, self.matrix,
            self.files,
        )  # fmt: skip

    def unused(
        self,
        links: tuple[LinkTable, ...],
        nats: tuple[NatTable, ...],
        hosts: tuple[HostTable, ...],
        groups: tuple[GroupTable, ...],
    ) -> None:
        """Refuse a link or gateway that no host uses, instead of ignoring it silently."""
        plugged = {item.link for items in (nats, hosts, groups) for item in items}
        behind = {nat.behind for nat in nats} | {host.behind for host in hosts}
        behind |= {host.nat for host in hosts}
        named: list[tuple[str, Sequence[LinkTable | NatTable], set[str]]]
        named = [("link", links, plugged), ("nat", nats, behind)]
        for kind, items, used in named:
            for number, one in enumerate(items):
                if one.id not in used:
                    message = f"[[{kind}]] `{one.id}` has no effect here: no host uses it"
                    hint = f'give a host `{kind} = "{one.id}"`, or leave it out'
                    self.source.refuse((kind, number), message, hint)

    def starts(self, sim: Sim, world: WorldTable, hosts: tuple[HostTable, ...]) -> None:
        """Check that programs start before the run ends, and that `spread` has an effect.

        `spread` has none if [churn] starts the population and every other host has its own `start`.
        """
        self.before_the_end(("world", "spread"), world.spread, sim)
        for number, host in enumerate(hosts):
            self.before_the_end(("host", number, "start"), host.start, sim)
        if world.spread and "churn" in self.source.data and all(host.start for host in hosts):
            self.without_effect(("world", "spread"), "is up to [churn]", "leave it out")

    def step(self, path: Path, data: dict[str, object], sim: Sim) -> StepTable:
        """Parse a [[step]], and check its times and targets."""
        for key in ("at", "action"):
            if key not in data:
                self.source.refuse(path, f"[[step]] needs `{key}`")
        name = self.source.value((*path, "action"), data["action"], units.text)
        self.source.choice((*path, "action"), "action", name, actions.ACTIONS)
        table = actions.ACTIONS[name]
        beside = ("at", "action", "for")
        action: Action = self.source.read(table, path, data, f"`{name}`", beside=beside)
        at = self.source.value((*path, "at"), data["at"], units.duration)
        self.before_the_end((*path, "at"), at, sim)
        lasts = None
        if "for" in data:
            lasts = self.source.value((*path, "for"), data["for"], units.period)
            if name not in actions.UNDO:
                self.without_effect((*path, "for"), f"cannot end `{name}`", "leave it out")
            self.before_the_end((*path, "for"), at + lasts, sim)
        elif table in actions.NEEDS_FOR:
            self.source.refuse(path, f"`{name}` needs `for`", 'say how long, as `for = "5s"`')
        self.targets(action, path)
        return StepTable(at, name, action, lasts, self.source.line(path))

    def before_the_end(self, path: Path, when: float, sim: Sim) -> None:
        """Refuse a time (in virtual seconds) that is after the end of the run."""
        if when > sim.duration:
            self.source.refuse(
                path, f"{when:g} s is after the end of the run at {sim.duration:g} s",
                "give [sim] a longer `duration`",
            )  # fmt: skip

    def targets(self, action: Action, path: Path) -> None:
        """Check that every word for hosts or gateways in an action is known, and that the action
        can apply to it.
        """
        hosts = {*self.names, *self.groups}
        known, what = hosts, "host"
        if isinstance(action, actions.GATEWAYS):
            known, what = self.gateways | self.groups_with_gateways(), "gateway"
        elif isinstance(action, actions.PLUGS):
            known, what = {*hosts, *self.gateways}, "host or gateway"
        for field, key in (("target", "target"), ("origins", "from"), ("receivers", "to")):
            for name in getattr(action, field, ()):
                self.source.choice((*path, key), what, name, known)
        if isinstance(action, actions.Partition):
            self.partition(action, (*path, "groups"), hosts)
        if isinstance(action, actions.OF_DAEMONS):
            self.daemons(action.target, (*path, "target"))

    def partition(self, action: actions.Partition, path: Path, known: set[str]) -> None:
        """Refuse a partition with unknown hosts, or with a host in two groups.

        The hosts of a drawn group are not known yet; `check_partitions` checks them later.
        """
        seen: set[str] = set()
        for word in (word for group in action.groups for word in group):
            self.source.choice(path, "host", word, known)
            for name in [word] if word in self.drawn else self.members_of(word):
                if name in seen:
                    self.source.refuse(path, f"`{name}` is in two groups of the partition")
                seen.add(name)

    def daemons(self, words: tuple[str, ...], path: Path) -> None:
        """Refuse hosts that run another program than the daemon."""
        for word in words:
            for name in self.members_of(word):
                if self.programs.get(name, "daemon") != "daemon":
                    hint = 'a host with `program = "daemon"` has a disk, and can generate'
                    self.source.refuse(path, f"`{name}` does not run a daemon", hint)

    def churn(self, world: WorldTable) -> Churn | None:
        """Parse [churn]. Return None if the file has no such table."""
        if "churn" not in self.source.data:
            return None
        churn = self.source.read(Churn, ("churn",), self.one("churn"), "[churn]")
        self.source.choice(("churn", "model"), "churn model", churn.model, vocabulary.churns())
        if not world.hosts:
            self.source.refuse(
                ("churn",), "[churn] has no effect here: it needs a population",
                "add `hosts` and `population` to [world]",
            )  # fmt: skip
        return churn

    def expects(
        self, sim: Sim, steps: tuple[StepTable, ...], programs: set[str]
    ) -> tuple[Expect, ...]:
        """Parse every [[expect]]. `programs` are the names of the programs that hosts run."""
        found = []
        for path, data in self.source.tables("expect"):
            if ("metric" in data) == ("invariant" in data):
                self.source.refuse(path, "[[expect]] has either a `metric` or an `invariant`")
            read = self.metric if "metric" in data else self.invariant
            found.append(read(path, data, sim, steps, programs))
        return tuple(found)

    def metric(
        self,
        path: Path,
        data: dict[str, object],
        sim: Sim,
        steps: tuple[StepTable, ...],
        programs: set[str],
    ) -> Expect:
        """Parse an [[expect]] that compares a metric."""
        self.source.keys(path, data, ("metric", "op", "value"), "[[expect]]")
        for key in ("op", "value"):
            if key not in data:
                self.source.refuse(path, f"[[expect]] of a metric needs `{key}`")
        name = self.source.value((*path, "metric"), data["metric"], units.text)
        measure = metrics.measure_of(name)
        if measure is None:
            self.source.unknown((*path, "metric"), "metric", name, metrics.known_metrics())
        op = self.source.value((*path, "op"), data["op"], units.text)
        self.source.choice((*path, "op"), "operator", op, metrics.OPERATORS)
        if measure.programs and not programs & set(measure.programs):
            self.unmeasured((*path, "metric"), name, measure.programs[0])
        value = self.source.value((*path, "value"), data["value"], measure.read)
        return Expect(metric=name, op=op, value=value, line=self.source.line(path))

    def unmeasured(self, path: Path, name: str, program: str) -> None:
        """Refuse an expectation because no host runs the program that it is about."""
        hint = f'give a host `program = "{program}"`'
        self.source.refuse(path, f"nothing in this scenario measures `{name}`", hint)

    def invariant(
        self,
        path: Path,
        data: dict[str, object],
        sim: Sim,
        steps: tuple[StepTable, ...],
        programs: set[str],
    ) -> Expect:
        """Parse an [[expect]] of an invariant, which has to hold within a time of the start or of
        steps.
        """
        self.source.keys(path, data, ("invariant", "within", "after"), "[[expect]]")
        name = self.source.value((*path, "invariant"), data["invariant"], units.text)
        self.source.choice((*path, "invariant"), "invariant", name, metrics.INVARIANTS)
        program = metrics.INVARIANTS[name][1]
        if program not in programs:
            self.unmeasured((*path, "invariant"), name, program)
        if "within" not in data:
            self.source.refuse(path, "[[expect]] of an invariant needs `within`")
        within = self.source.value((*path, "within"), data["within"], units.period)
        after = ""
        moments = [0.0]
        if "after" in data:
            after = self.source.value((*path, "after"), data["after"], units.text)
            moments = moments_after(steps, after)
            if not moments:
                known = {event for step in steps for event in events_of(step)}
                self.source.unknown((*path, "after"), "step", after, known)
        self.before_the_end((*path, "within"), max(moments) + within, sim)
        line = self.source.line(path)
        return Expect(invariant=name, within=within, after=after, line=line)


def events_of(step: StepTable) -> list[str]:
    """Return the names of a step's events: its action and, if it has a `for`, the ending action."""
    return [step.name] if step.lasts is None else [step.name, actions.UNDO[step.name]]


def moments_after(steps: tuple[StepTable, ...], word: str) -> list[float]:
    """Return the virtual times, in seconds, of the events named `word`, in ascending order.

    An event is a step's action, or the action that ends a step with a `for`.
    """
    found = [step.at for step in steps if step.name == word]
    found += [
        step.at + step.lasts
        for step in steps
        if step.lasts is not None and actions.UNDO[step.name] == word
    ]
    return sorted(found)
