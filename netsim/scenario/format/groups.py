"""Groups (`[[group]]`): names for subsets of the hosts, selected by gateway, share or number.

The seed draws the hosts. Each pair of a host and a group has a random generator of its own. Adding
another host or group therefore changes no draw.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

from ...errors import BadScenario
from ...population import mix
from ...streams import RandomStreams
from ..programs import SETTINGS
from . import actions, units, vocabulary
from .actions import Action
from .places import StaticTables
from .positions import Path
from .source import knobs
from .tables import GroupTable, LinkTable, Scenario, StepTable, WorldTable

MOST_GROUPS: Final = 100  # bounds the memory, as each group may have every host
PUBLIC: Final = "public"  # the kind of a host without a gateway


class GroupTables(StaticTables):
    """Parser of the [[group]] tables of a document. Refuses errors by raising BadScenario."""

    def drawn_groups(
        self, world: WorldTable, links: tuple[LinkTable, ...]
    ) -> tuple[GroupTable, ...]:
        """Parse every [[group]], in the order of the file. Register its name, and the hosts from
        which it will be drawn.

        `draw` chooses the hosts of the group later, because they depend on the seed.
        """
        kinds = {PUBLIC, *vocabulary.kinds()}
        if world.hosts:
            kinds |= {kind.name for kind in mix.load(world.population).kinds}
        found = []
        for number, (path, data) in enumerate(self.source.tables("group")):
            if number == MOST_GROUPS:
                self.source.refuse(path, f"at most {MOST_GROUPS} groups")
            group = self.source.read(GroupTable, path, data, "[[group]]")
            self.group_name(group.name, path)
            known = {*self.names, *self.groups}
            for key in ("of", "without"):
                for word in getattr(group, key):
                    self.source.choice((*path, key), "host", word, known)
            for word in group.kind:
                self.source.choice((*path, "kind"), "kind of gateway or class", word, kinds)
            self.known_link((*path, "link"), group.link, links)
            self.size_of_group(group, path)
            pool = [name for word in group.of for name in self.members_of(word)]
            self.groups[group.name] = list(dict.fromkeys(pool))
            self.drawn.add(group.name)
            settings = self.settings_of_group(group, path, data)
            line = self.source.line(path)
            found.append(dataclasses.replace(group, settings=settings, line=line))
        return tuple(found)

    def group_name(self, name: str, path: Path) -> None:
        """Refuse a group's name if it has a character that is not allowed, or is already used."""
        if not all(character.isalnum() or character in "-_" for character in name):
            hint = "use letters, digits, - _"
            self.source.refuse((*path, "name"), f"`{name}` is not a valid name for a group", hint)
        if name in {*self.names, *self.groups, *self.gateways, "population"}:
            self.source.refuse((*path, "name"), f"the name `{name}` is already used")

    def size_of_group(self, group: GroupTable, path: Path) -> None:
        """Refuse a group that has both a `share` and a `count`, or a share of 0."""
        if group.share is not None and group.count is not None:
            self.source.refuse((*path, "share"), "[[group]] has either a `share` or a `count`")
        if group.share == 0:
            self.source.refuse((*path, "share"), "`0`: a share here is greater than 0")

    def settings_of_group(
        self, group: GroupTable, path: Path, data: dict[str, object]
    ) -> dict[str, object] | None:
        """Parse the settings that a group gives to its hosts. Return the values by field name.

        Returns None if the group has no `settings`. All hosts of the group have to run the same
        program, because the program decides which settings exist.
        """
        if "settings" not in data:
            return None
        programs = sorted({self.programs[name] for name in self.groups[group.name]})
        if len(programs) > 1:
            hint = "give `of` hosts of one program"
            listed = " and ".join(f"`{name}`" for name in programs)
            self.source.refuse((*path, "settings"), f"the hosts run {listed}", hint)
        program = programs[0]
        read = self.settings(program, path, data)
        given = {
            item.name: getattr(read, item.name)
            for key, item in knobs(SETTINGS[program]).items()
            if key in units.table(data["settings"])
        }
        self.told.append((path, program, read))
        return given

    def groups_with_gateways(self) -> set[str]:
        """Return the groups in which at least one host has a gateway of its own."""
        return {
            word
            for word in self.groups
            if any(name in self.gateways or name == "population" for name in self.members_of(word))
        }

    def unused_groups(self, groups: tuple[GroupTable, ...], steps: tuple[StepTable, ...]) -> None:
        """Refuse a group that has no effect, instead of ignoring it silently.

        A group has an effect if a step or another group names it, or if it has a `link` or
        `settings`.
        """
        used = {word for step in steps for word in words_of(step.action)}
        used |= {word for group in groups for word in (*group.of, *group.without)}
        for number, group in enumerate(groups):
            if not (group.name in used or group.link or group.settings):
                message = f"[[group]] `{group.name}` has no effect here: no step names it"
                hint = "name it in a step, or give it a `link` or `settings`"
                self.source.refuse(("group", number), message, hint)


def words_of(action: Action) -> set[str]:
    """Return every word for hosts that an action uses, in any of its fields."""
    fields = ("target", "origins", "receivers")
    words = {word for name in fields for word in getattr(action, name, ())}
    return words | {word for group in getattr(action, "groups", ()) for word in group}


def draw(
    tables: Iterable[GroupTable],
    known: Mapping[str, list[str]],
    kinds: Mapping[str, frozenset[str]],
    streams: RandomStreams,
) -> dict[str, list[str]]:
    """Draw the hosts of each group. Return the names of the hosts, by group.

    `known` maps words such as `all`, which are not groups, to the names of hosts. `kinds` maps each
    host to the words that a group's `kind` can match: the kinds of the host's gateways, and its
    class in the population. Raises BadScenario if too few hosts match a group.
    """
    found: dict[str, list[str]] = {}

    def hosts(words: Iterable[str]) -> dict[str, None]:
        """Return the hosts to which the words refer, each once, as the keys of a dictionary."""
        both = {**known, **found}
        return {name: None for word in words for name in both.get(word, [word])}

    for table in tables:
        left_out = hosts(table.without)
        names = [
            name
            for name in hosts(table.of)
            if name not in left_out and (not table.kind or kinds[name] & {*table.kind})
        ]
        found[table.name] = _some(table, names, streams)
    return found


def _some(table: GroupTable, names: list[str], streams: RandomStreams) -> list[str]:
    """Draw as many of `names` as the group asks for, and at least one, in the order of `names`.

    Raises BadScenario if there are too few names.
    """
    wanted = len(names)
    if table.count is not None:
        wanted = table.count
    elif table.share is not None:
        wanted = round(table.share * len(names))
    wanted = max(wanted, 1)
    if wanted > len(names):
        raise BadScenario(
            f"[[group]] `{table.name}` needs {wanted} of the hosts, and with this seed there are "
            f"{len(names)} to draw from",
            line=table.line, hint="add hosts, or widen `of` or `kind`",
        )  # fmt: skip
    purpose = f"group {table.name}"
    luck = {name: streams.get(name, purpose).random() for name in names}
    chosen = {*sorted(names, key=luck.__getitem__)[:wanted]}
    return [name for name in names if name in chosen]


def check_partitions(scenario: Scenario, known: Mapping[str, list[str]]) -> None:
    """Check that the drawn groups put no host on two sides of a partition.

    `known` maps each word that refers to several hosts to these hosts. Raises BadScenario if a host
    is on two sides.
    """
    for step in scenario.steps:
        if not isinstance(step.action, actions.Partition):
            continue
        seen: set[str] = set()
        for words in step.action.groups:
            side = {name for word in words for name in known.get(word, [word])}
            if twice := sorted(seen & side):
                raise BadScenario(
                    f"`{twice[0]}` is in two groups of the partition", line=step.line,
                    hint="`without` of a [[group]] leaves the hosts of another one out",
                )  # fmt: skip
            seen |= side
