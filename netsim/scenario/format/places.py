"""Parser of a scenario's static part: the run, the world, links, gateways and hosts.

Refuses anything that is unknown, malformed or without effect: raises BadScenario with its line.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable

from ...errors import BadScenario
from ...population.data import unknown
from ...population.latency import FORMATS, WITH_UNIT, LatencyMatrix
from ..programs import SETTINGS, ProgramSettings
from . import units, vocabulary
from .links import pipe_spec
from .positions import Path
from .source import SourceDocument, knobs
from .tables import DirectionTable, HostTable, LinkTable, NatTable, Sim, WorldTable

Beside = Callable[[str], str]
"""Function that returns the text of a file in the scenario's folder, by name. Raises BadScenario if
the file cannot be read.
"""
_FILE = re.compile(r"\w[\w.+ -]{0,200}")  # no slash, so it cannot name a file outside the folder
MOST_HOSTS = 100_000
MOST_DAEMONS = 2000
"""A daemon takes about 5 MiB of memory (bench/netsim_capacity.py), and any other host 30 KiB."""
MOST_SAMPLES = 100_000  # samples of the metrics in one run


class StaticTables:
    """Parser of the static tables of one document. It collects the names of hosts, gateways and
    groups that the tables define.
    """

    def __init__(self, source: SourceDocument, beside: Beside) -> None:
        self.source = source
        self.beside = beside
        self.files: dict[str, str] = {}  # files read from the scenario's folder
        self.matrix: LatencyMatrix | None = None
        self.names: dict[str, Path] = {}  # of hosts: the path of the [[host]] that makes each
        self.programs: dict[str, str] = {}  # by host; `population` counts as one host
        self.groups: dict[str, list[str]] = {"all": []}  # words that stand for several hosts
        self.gateways: set[str] = set()  # [[nat]]s, and hosts with a gateway of their own
        self.sites = 0  # rows of the latency matrix; 0 without a matrix
        self.drawn: set[str] = set()  # the groups that the seed draws
        # Settings whose targets are to be checked: (path of the table, program, settings).
        self.told: list[tuple[Path, str, ProgramSettings]] = []

    def one(self, name: str) -> dict[str, object]:
        """Return a table that a document has at most once; an empty one if it is absent."""
        return self.source.table((name,), self.source.data.get(name, {}))

    def sim(self) -> Sim:
        """Parse [sim]. Refuse the document if [sim] is missing or asks for too many samples."""
        if "sim" not in self.source.data:
            self.source.refuse((), "there is no [sim]", 'add `[sim]`, `name` and `duration = "1m"`')
        sim = self.source.read(Sim, ("sim",), self.one("sim"), "[sim]")
        if sim.duration / sim.sample > MOST_SAMPLES:
            self.source.refuse(
                ("sim", "sample" if "sample" in self.one("sim") else "duration"),
                f"more than {MOST_SAMPLES} samples",
                'sample less often, as `sample = "1m"`',
            )
        return sim

    def world(self) -> WorldTable:
        """Parse [world]. Its `settings` become None if there is no population."""
        data = self.one("world")
        world = self.source.read(WorldTable, ("world",), data, "[world]")
        self.latency(world)
        form = world.latency.partition(":")[0]
        if world.latency_unit and form not in WITH_UNIT:
            why = "is for a `planetlab:FILE`; the other formats have a fixed unit"
            self.without_effect(("world", "latency_unit"), why, "leave it out")
        for key in ("hosts", "relays"):
            if getattr(world, key) > MOST_HOSTS:
                self.source.refuse(("world", key), f"{key}: at most {MOST_HOSTS}")
        if not world.hosts:
            for key in ("population", "program", "settings"):
                if key in data:
                    self.without_effect(("world", key), "needs a population", "add `hosts = 10`")
            return dataclasses.replace(world, settings=None)
        if not world.population:
            self.source.refuse(
                ("world",), "`hosts` needs a `population`",
                f'as `population = "{vocabulary.populations()[0]}"`',
            )  # fmt: skip
        path = ("world", "population")
        self.source.choice(path, "population", world.population, vocabulary.populations())
        self.groups["population"] = ["population"]
        self.programs["population"] = world.program
        settings = self.settings(world.program, ("world",), data)
        self.told.append((("world",), world.program, settings))
        return dataclasses.replace(world, settings=settings)

    def latency(self, world: WorldTable) -> None:
        """Check the `latency` of [world]. If it names a latency matrix, load the matrix."""
        path = ("world", "latency")
        if world.latency[:1].isdigit():
            self.source.value(path, world.latency, units.duration)
        else:
            try:
                self.matrix = self.matrix_of(world.latency, world.latency_unit)
            except BadScenario as problem:
                self.source.refuse(path, problem.message, problem.hint)
            self.sites = len(self.matrix)

    def matrix_of(self, latency: str, unit: str) -> LatencyMatrix:
        """Return the latency matrix that `latency` names.

        `latency` is the name of a built-in matrix, or `FORM:FILE` with a file in the scenario's
        folder. `unit` is the unit of the file's numbers, for formats that need one. Raises
        BadScenario if the name is unknown or the file is malformed.
        """
        form, colon, name = latency.partition(":")
        if not colon:
            return vocabulary.latency(latency)
        if form not in FORMATS:
            raise unknown("form of latencies", form, FORMATS)
        if not _FILE.fullmatch(name):
            hint = "put it into the scenario's folder, and write only its name"
            raise BadScenario(f"`{name}` is not the name of a file in this folder", hint=hint)
        text = self.beside(name)
        self.files[name] = text
        try:
            return vocabulary.latency_of(form, text, unit)
        except BadScenario as problem:
            where = f"{name}:{problem.line}: " if problem.line else ""
            raise BadScenario(f"{where}{problem.message}", hint=problem.hint) from None

    def site(self, path: Path, data: dict[str, object], site: int) -> None:
        """Refuse a `site` if there is no latency matrix or the matrix has no such row."""
        if "site" not in data:
            return
        if not self.sites:
            hint = 'set `latency = "core"` in [world], or leave `site` out'
            self.without_effect((*path, "site"), "is a row of a latency matrix", hint)
        if site >= self.sites:
            hint = f"its rows are 0 to {self.sites - 1}"
            self.source.refuse((*path, "site"), f"the latency matrix has no site {site}", hint)

    def relays(self, world: WorldTable, programs: set[str]) -> None:
        """Check that there are relays if hosts run `punch`, and none otherwise."""
        if "punch" in programs and not world.relays:
            self.source.refuse(
                ("world",), "`punch` hosts meet at a relay, and there is none",
                "add `relays = 1` to [world]",
            )  # fmt: skip
        if world.relays and "punch" not in programs:
            self.without_effect(
                ("world", "relays"), "is for `punch` hosts", 'set `program = "punch"`'
            )

    def sizes(self, world: WorldTable) -> None:
        """Check that all hosts together fit into the memory of one machine."""
        named = {name: program for name, program in self.programs.items() if name in self.names}
        programs = Counter(named.values())
        programs[world.program] += world.hosts
        where: Path = ("world", "hosts") if world.hosts else ("host",)
        if len(named) + world.hosts + world.relays > MOST_HOSTS:
            self.source.refuse(where, f"at most {MOST_HOSTS} hosts")
        if programs["daemon"] > MOST_DAEMONS:
            hint = "each takes about 5 MiB of memory; give the others another `program`"
            self.source.refuse(where, f"at most {MOST_DAEMONS} whole daemons", hint)

    def without_effect(self, path: Path, why: str, hint: str) -> None:
        """Refuse the key at `path` because it would have no effect. `why` is the reason, as words
        that follow "it" in the message.
        """
        self.source.refuse(path, f"`{path[-1]}` has no effect here: it {why}", hint)

    def links(self) -> tuple[LinkTable, ...]:
        """Parse every [[link]], and check that their names are unique."""
        found: dict[str, LinkTable] = {}
        for path, data in self.source.tables("link"):
            link = self.link(path, data)
            if link.id in found or link.id in vocabulary.profiles():
                self.source.refuse((*path, "id"), f"the link `{link.id}` already exists")
            found[link.id] = link
        return tuple(found.values())

    def link(self, path: Path, data: dict[str, object]) -> LinkTable:
        """Parse one [[link]]."""
        beside = ("id", "profile", "up", "down")
        both = self.source.read(DirectionTable, path, data, "[[link]]", beside=beside)
        if "id" not in data:
            self.source.refuse(
                path, "[[link]] needs `id`", "`id` is its name, which a host's `link` uses"
            )
        name = self.source.value((*path, "id"), data["id"], units.text)
        profile = ""
        if "profile" in data:
            profile = self.source.value((*path, "profile"), data["profile"], units.text)
            known = vocabulary.profiles()
            self.source.choice((*path, "profile"), "link profile", profile, known)
        one_way = {}
        for key in ("up", "down"):
            inner = self.source.table((*path, key), data.get(key, {}))
            one_way[key] = self.source.read(DirectionTable, (*path, key), inner, f"`{key}`")
        found = LinkTable(
            name, profile, both, one_way["up"], one_way["down"], self.source.line(path)
        )
        self.check_link(found, path, data)
        return found

    def check_link(self, link: LinkTable, path: Path, data: dict[str, object]) -> None:
        """Check that the resulting values of each direction of a link fit together."""
        for key, own in (("up", link.up), ("down", link.down)):
            try:
                pipe_spec(link, own, key)
            except BadScenario as error:
                inner = units.table(data.get(key, {}))
                at = (*path, key, error.message.split("`")[1])
                where = at if error.message.split("`")[1] in inner else (*path, at[-1])
                self.source.refuse(where, error.message, error.hint)

    def nats(self, links: tuple[LinkTable, ...]) -> tuple[NatTable, ...]:
        """Parse every [[nat]].

        The [[nat]] that a `behind` key names must come earlier in the file.
        """
        found: dict[str, NatTable] = {}
        for path, data in self.source.tables("nat"):
            nat = self.nat(path, data)
            if nat.id in found or nat.id in vocabulary.kinds():
                self.source.refuse((*path, "id"), f"the gateway `{nat.id}` already exists")
            if nat.behind:
                self.source.choice((*path, "behind"), "earlier [[nat]]", nat.behind, found)
            self.known_link((*path, "link"), nat.link, links)
            self.site(path, data, nat.site)
            if "site" in data and nat.behind:
                hint = f"give `site` to the [[nat]] `{nat.behind}`"
                self.without_effect((*path, "site"), "is that of the outer gateway", hint)
            found[nat.id] = nat
        self.gateways |= set(found)
        return tuple(found.values())

    def nat(self, path: Path, data: dict[str, object]) -> NatTable:
        """Parse one [[nat]]. Its `kind` decides which further keys it can have."""
        kind = self.source.value((*path, "kind"), data.get("kind", "router"), units.text)
        self.source.choice((*path, "kind"), "kind of gateway", kind, vocabulary.kinds())
        extra = vocabulary.nat_knobs(kind)
        own = knobs(NatTable)
        self.source.keys(path, data, {*own, *extra}, f"[[nat]] of kind `{kind}`")
        plain = {key: value for key, value in data.items() if key in own}
        nat = self.source.read(NatTable, path, plain, "[[nat]]")
        values = {
            key: self.source.value((*path, key), value, extra[key])
            for key, value in data.items()
            if key not in own
        }
        try:
            vocabulary.check_nat(kind, values)
        except ValueError as error:
            self.source.refuse(path, str(error))
        return dataclasses.replace(nat, extra=values, line=self.source.line(path))

    def known_link(self, path: Path, name: str, links: tuple[LinkTable, ...]) -> None:
        """Refuse the name of a link that is neither a [[link]] nor a profile.

        An empty name is allowed.
        """
        if name:
            known = {link.id for link in links} | set(vocabulary.profiles())
            self.source.choice(path, "link", name, known)

    def hosts(
        self, links: tuple[LinkTable, ...], nats: tuple[NatTable, ...]
    ) -> tuple[HostTable, ...]:
        """Parse every [[host]], and register the names of the hosts."""
        shared = {nat.id for nat in nats}
        found = []
        for path, data in self.source.tables("host"):
            host = self.source.read(HostTable, path, data, "[[host]]")
            self.place(host, path, shared)
            self.site(path, data, host.site)
            self.known_link((*path, "link"), host.link, links)
            self.host_names(host, path)
            settings = self.settings(host.program, path, data)
            self.told.append((path, host.program, settings))
            line = self.source.line(path)
            found.append(dataclasses.replace(host, settings=settings, line=line))
        return tuple(found)

    def place(self, host: HostTable, path: Path, shared: set[str]) -> None:
        """Check the gateway in front of a host. `shared` has the names of the [[nat]]s."""
        if host.nat:
            known = shared | set(vocabulary.kinds())
            self.source.choice((*path, "nat"), "kind of gateway or [[nat]]", host.nat, known)
        if host.behind:
            self.source.choice((*path, "behind"), "[[nat]]", host.behind, shared)
            if host.nat not in vocabulary.kinds():
                hint = f'to put the host directly behind it, write `nat = "{host.behind}"`'
                self.without_effect(
                    (*path, "behind"), "is for a host with a gateway of its own", hint
                )
        if host.site and (host.nat in shared or host.behind):
            where = host.behind or host.nat
            hint = f"give `site` to the [[nat]] `{where}`"
            self.without_effect((*path, "site"), "is that of the gateway", hint)

    def host_names(self, host: HostTable, path: Path) -> None:
        """Check and register the names of the hosts that a [[host]] makes."""
        if len(self.names) + host.count > MOST_HOSTS:
            self.source.refuse((*path, "count"), f"at most {MOST_HOSTS} hosts")
        if not all(character.isalnum() or character in "-_" for character in host.name):
            self.source.refuse(
                (*path, "name"),
                f"`{host.name}` is not a valid name for a host",
                "use letters, digits, - _",
            )
        if host.count > 1:
            self.groups[host.name] = host.names()
        for name in host.names():
            if name in self.names or name in self.gateways or name in ("all", "population"):
                self.source.refuse((*path, "name"), f"the name `{name}` is already used")
            self.names[name] = path
            self.programs[name] = host.program
        if host.nat in vocabulary.kinds():
            self.gateways.update(host.names())

    def settings(self, program: str, path: Path, data: dict[str, object]) -> ProgramSettings:
        """Parse the `settings` of a program from the table `data`."""
        inner = self.source.table((*path, "settings"), data.get("settings", {}))
        what = f"settings of `{program}`"
        if program == "daemon" and inner.get("engine") is False:
            for key in ("tokens", "model", "layers", "dtype"):
                if key in inner:
                    at = (*path, "settings", key)
                    self.without_effect(at, "is for the engine", "leave out `engine = false`")
        return self.source.read(SETTINGS[program], (*path, "settings"), inner, what)

    def members_of(self, word: str) -> list[str]:
        """Return the names of the hosts to which a word refers: a host, a group or `all`.

        A population counts as one host.
        """
        if word == "all":
            population = ["population"] if "population" in self.groups else []
            return [*self.names, *population]
        return self.groups.get(word, [word])

    def targets_of_settings(self) -> None:
        """Refuse settings with a target host that does not run the same program."""
        known: dict[str, set[str]] = {}
        for name in self.names:
            known.setdefault(self.programs[name], set()).add(name)
        for path, program, settings in self.told:
            key = "bootstrap" if program == "daemon" else "to"
            for name in getattr(settings, "to", None) or ():
                what = f"`{program}` host"
                self.source.choice((*path, "settings", key), what, name, known.get(program, ()))
