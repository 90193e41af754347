"""Generator of docs/spec/scenario.md from the dataclasses of the tables.

Usage: `python -m shoal.netsim.scenario.reference > docs/spec/scenario.md`. A test compares the file
with this output, so that the two cannot diverge.
"""

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import MISSING

from ..nat.kinds import KINDS
from ..population import latency, mix
from ..population import profiles as profiles_module
from .explained import BURST, GROUPS, INTRODUCTION, LATENCY, RELAYS
from .format import units, vocabulary
from .format.actions import ACTIONS, NEEDS_FOR, UNDO
from .format.metrics import INVARIANTS, MEASURES, OPERATORS, REASONS, STATISTICS
from .format.source import knobs
from .format.tables import Churn, DirectionTable, GroupTable, HostTable, NatTable, Sim, WorldTable
from .programs import SETTINGS, daemon


def _form(read: object) -> str:
    """Return a short description of the values that a reader of `units.py` accepts, such as
    "time".
    """
    if isinstance(read, units.Count):
        return f"whole number from 1 to {read.most}"
    forms: dict[object, str] = {
        units.duration: "time", units.period: "time", units.span: "time, either way",
        units.rate: "rate", units.size: "size", units.share: "share", units.number: "number",
        units.whole: "whole number", units.positive: "whole number from 1",
        units.switch: "true or false", units.text: "text", units.seeds: "seeds",
        units.names: "names", units.names_or_none: "names, or `[]`",
        units.groups: "lists of names", units.table: "table", units.unread: "table",
        daemon.limit: "rate", daemon.relay: 'rate, or `"none"`',
    }  # fmt: skip
    return forms.get(read, "text")


def _default(value: object) -> str:
    """Format the default of a field; an empty text if it has none to show."""
    if value is MISSING:
        return "needed"
    if isinstance(value, tuple):
        value = " ".join(map(str, value))
    if isinstance(value, bool):
        value = str(value).lower()
    return "" if value is None or value == "" else f"`{value}`"


def _rows(table: type) -> Iterator[str]:
    """Yield the lines of the Markdown table that describes the keys of a dataclass."""
    yield "| key | form | default | |\n|---|---|---|---|\n"
    for key, item in knobs(table).items():
        about = item.metadata
        default = _default(item.default)
        yield f"| `{key}` | {_form(about['read'])} | {default} | {about['says']} |\n"


def _listed(words: Iterable[str]) -> str:
    """Format words as a list in Markdown code style."""
    return ", ".join(f"`{word}`" for word in words)


def _section(title: str, table: type, *more: str) -> str:
    """Return the section about one table. The texts in `more` follow the list of its keys."""
    return f"\n## {title}\n\n" + "".join(_rows(table)) + "".join(f"\n{text}\n" for text in more)


def reference() -> str:
    """Return the text of docs/spec/scenario.md."""
    introduction = INTRODUCTION.format(
        times=_listed(units.TIMES), rates=_listed(units.RATES), sizes=_listed(units.SIZES)
    )
    return "".join((introduction, *_places(), *_programs(), *_steps(), *_expectations()))


def _places() -> Iterator[str]:
    """Yield the sections about the static part: from [sim] to [churn]."""
    yield "\nDefaults below are in seconds, bytes, and bytes per second.\n"
    yield _section("[sim]", Sim)
    populations, matrices = vocabulary.populations(), vocabulary.latencies()
    world = (
        f"Populations: {_listed(populations)}. Latencies: a time, or {_listed(matrices)}; FILE is "
        "a file in the scenario's folder."
    )
    latencies = LATENCY.format(
        cities=len(latency.matrix()), detour=latency.DETOUR, fibre=latency.FIBRE_KM_PER_S,
        ends=latency.ENDS_MS, unsure=latency.UNSURE_BELOW,
    )  # fmt: skip
    yield _section("[world]", WorldTable, world, latencies.rstrip())
    profiles, over = profiles_module.names(), profiles_module.overlays()
    link = (
        "`id` (needed) is its name; `profile` is its base, one of "
        f"{_listed(profiles)}, each also with {_listed('+' + name for name in over)}. `up` and "
        "`down` are tables with the same keys, for one direction. `queue` needs a `rate`, "
        "`reorder_delay` a `reorder`."
    )
    yield _section("[[link]]", DirectionTable, link, BURST.rstrip())
    more = f"Further keys, by kind: {_listed(vocabulary.KNOBS)}."
    yield _section("[[nat]]", NatTable, f"Kinds: {_listed(KINDS)}.", more)
    yield _section("[[host]]", HostTable)
    classes = _listed(kind.name for kind in mix.load(populations[0]).kinds)
    groups = GROUPS.format(name=populations[0], classes=classes)
    yield _section("[[group]]", GroupTable, groups.rstrip())
    yield _section("[churn]", Churn, f"Models: {_listed(vocabulary.churns())}.")


def _programs() -> Iterator[str]:
    """Yield the sections about the programs and their settings."""
    yield "\n# Programs and their settings\n"
    for name, table in SETTINGS.items():
        module = inspect.getmodule(table)
        said = (inspect.getdoc(module) or "").partition("\n")[0]
        yield f"\n## {name}\n\n{said}\n"
        if knobs(table):
            yield "\n" + "".join(_rows(table))
        if name == "daemon":
            yield f"\n{RELAYS}"


def _steps() -> Iterator[str]:
    """Yield the sections about the actions of steps."""
    yield "\n# Steps\n\n`at` (needed) is the time, `action` what to do; `for` is how long it "
    yield "lasts.\n"
    for name, table in ACTIONS.items():
        yield f"\n## {name}\n\n{inspect.getdoc(table)}"
        if table in NEEDS_FOR:
            yield f" Needs `for` (then `{UNDO[name]}`)."
        elif name in UNDO:
            yield f" With `for`: then `{UNDO[name]}`."
        yield "\n"
        if knobs(table):
            yield "\n" + "".join(_rows(table))


def _expectations() -> Iterator[str]:
    """Yield the section about metrics and invariants."""
    yield (
        "\n# Expectations\n\nEither a `metric` with `op` and `value`, compared at the end: "
        f"{_listed(OPERATORS)}. Of a distribution name a statistic: {_listed(STATISTICS)}, as in "
        "`rtt.p95`. An expectation fails if nothing was measured for its metric.\n\n"
        "| metric | | of |\n|---|---|---|\n"
    )
    for name, measure in MEASURES.items():
        kind = f"`{measure.programs[0]}`" if measure.programs else "the network"
        spread = " (distribution)" if measure.spread else ""
        yield f"| `{name}` | {measure.says}{spread} | {kind} |\n"
    for reason, says in REASONS.items():
        yield f"| `drops.{reason}` | packets dropped: {says} | the network |\n"
    yield (
        "\nOr an `invariant` that has to hold at some sample `within` a time of the start, or "
        "`after` every step of that name; what ends a `for` counts as a step (`heal`, `restart`, "
        "…).\n\n| invariant | |\n|---|---|\n"
    )
    for name, (says, _) in INVARIANTS.items():
        yield f"| `{name}` | {says} |\n"


if __name__ == "__main__":
    print(reference(), end="")
