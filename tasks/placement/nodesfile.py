"""Reads a description of machines from a TOML file, for `shoal plan --nodes` (docs/plan.md).

The file may come from anyone: its size, its numbers and their types are checked before use.
"""

import math
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from ...transport.identity import PeerId
from ..costs.rates import ACCELERATOR, UNKNOWN, DeviceRates, Efficiency, LinkRates
from ..errors import BadNodes
from .fleet import DEMAND, FAR, Demand, Fleet, Machine, Pair, pair
from .whatif import Newcomer

FILE_BYTES: Final = 2**18  # 64 machines with all of their links need half of it
MACHINES: Final = 64
NAME_CHARACTERS: Final = 64
_UNITS: Final = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY: Final = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_MOST: Final = 1e18
_NODE: Final = ("name", "memory", "bandwidth", "tflops", "load")
_LINK: Final = ("between", "round_trip_ms", "mbit")
_ADD: Final = ("memory", "bandwidth", "tflops", "load", "round_trip_ms", "mbit")
_DOTS: Final = 16
# The parser needs time quadratic in the parts of a key: hours for a key of FILE_BYTES bytes.
# Parts of over 256 characters are not looked at: such keys have few.
_PART: Final = r"""(?:(?<![\w-])[\w-]{1,256}+|"(?:[^"\\\n]|\\.){0,256}+"|'[^'\n]{0,256}+')"""
_DOTTED: Final = re.compile(rf"{_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{_DOTS + 1}}}")
# The fastest machine takes this time for a layer too, however small the layer is.
_EFFICIENCY: Final = Efficiency(layer_s=ACCELERATOR.layer_s)
Table = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class NodesFile:
    """The contents of a file: machines with their links, and the demand."""

    fleet: Fleet
    demand: Demand


def read_nodes(data: bytes) -> NodesFile:
    """Read the contents of a file. Raises BadNodes, whose message names the entry."""
    if len(data) > FILE_BYTES:
        raise _bad(f"the file has over {FILE_BYTES} bytes")
    try:
        text = data.decode()
        if _DOTTED.search(text):
            raise _bad(f"the file is nested too deeply: a key has over {_DOTS} dots")
        top = tomllib.loads(text)
    except UnicodeDecodeError:
        raise _bad("the file is not UTF-8 text") from None
    except RecursionError:
        raise _bad("the file is nested too deeply") from None
    except ValueError as error:  # also of a whole number with thousands of digits
        raise _bad(f"the file is not TOML: {error}") from None
    _known(top, ("node", "link", "links", "demand"), "the file")
    machines = tuple(_machine(each) for each in _tables(top, "node"))
    if not 1 <= len(machines) <= MACHINES:
        raise _bad(f"the file has {len(machines)} entries [[node]], expected 1 to {MACHINES}")
    names = {machine.peer for machine in machines}
    if len(names) < len(machines):
        raise _bad("two entries [[node]] have the same name")
    far = _link(_table(top, "links"), "[links]", FAR, _LINK[1:])
    links = dict(_between(each, names, far) for each in _tables(top, "link"))
    return NodesFile(Fleet(machines, links, far), _demand(_table(top, "demand")))


def read_newcomer(text: str, name: str) -> Newcomer:
    """Read a machine from the value of `--add`, such as `memory=24GiB,bandwidth=1008,tflops=165`.

    Raises BadNodes.
    """
    table: dict[str, object] = {"name": name}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or key not in _ADD or key in table:
            raise _bad(f"`{part.strip()[:64]}` in --add is not one of {'=, '.join(_ADD)}=")
        table[key] = value if key == "memory" else _parsed(value, key)
    link: Table = {key: table.pop(key) for key in _LINK[1:] if key in table}
    return Newcomer(_machine(table, "--add"), _link(link, "--add", FAR, _LINK[1:]))


def _parsed(text: str, key: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _bad(f"`{key}={text[:32]}` in --add is not a number") from None


def _machine(table: Table, where: str | None = None) -> Machine:
    """Read an entry [[node]], or what `where` names: memory as a size, bandwidth and load in
    GB/s."""
    _known(table, _NODE, "[[node]]")
    name = table.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS or not name.isprintable():
        raise _bad(f"an entry [[node]] has no `name` of 1 to {NAME_CHARACTERS} characters")
    where = where or f"[[node]] {name}"
    flops = 1e12 * _number(table, "tflops", where, UNKNOWN.bfloat16 / 1e12)
    bandwidth = 1e9 * _number(table, "bandwidth", where, UNKNOWN.bandwidth / 1e9)
    load = 1e9 * _number(table, "load", where, UNKNOWN.load / 1e9)
    rates = DeviceRates(bandwidth, flops, flops, load=load, efficiency=_EFFICIENCY)
    return Machine(PeerId(name), _size(table.get("memory"), where), rates)


def _size(value: object, where: str) -> int:
    """Read a size such as `24GiB`."""
    if isinstance(value, str):
        digits = value.rstrip("KMGTiB").strip()
        unit = _UNITS | _BINARY
        factor = unit.get(value.strip()[len(digits) :].strip())
        try:
            count = float(digits)
        except ValueError:
            count = math.nan
        if factor is not None and 0 < count * factor <= _MOST:
            return int(count * factor)
    raise _bad(f'{where}: `memory` is not a size such as "24GiB"')


def _between(table: Table, names: Collection[PeerId], far: LinkRates) -> tuple[Pair, LinkRates]:
    """Read an entry [[link]]."""
    _known(table, _LINK, "[[link]]")
    ends = table.get("between")
    if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(e, str) for e in ends):
        raise _bad("an entry [[link]] has no `between` with the names of two nodes")
    one, two = (PeerId(end) for end in ends)
    for end in (one, two):
        if end not in names:
            raise _bad(f"an entry [[link]] names the node {end[:NAME_CHARACTERS]!r}, which is none")
    if one == two:
        raise _bad(f"an entry [[link]] joins {one!r} with itself")
    return pair(one, two), _link(table, f"[[link]] {one} and {two}", far, _LINK)


def _link(table: Table, where: str, default: LinkRates, keys: Collection[str]) -> LinkRates:
    _known(table, keys, where)
    trip = _number(table, "round_trip_ms", where, 1000 * default.round_trip_s, least=0.0)
    rate = _number(table, "mbit", where, 8 * default.rate / 1e6)
    return LinkRates(trip / 1000, rate * 1e6 / 8)


def _demand(table: Table) -> Demand:
    _known(table, ("sessions", "prompt", "answer"), "[demand]")
    return Demand(
        _whole(table, "sessions", DEMAND.sessions, 64),
        _whole(table, "prompt", DEMAND.prompt, 10**7),
        _whole(table, "answer", DEMAND.answer, 10**7),
    )


def _whole(table: Table, key: str, default: int, most: int) -> int:
    value = table.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise _bad(f"[demand]: `{key}` is not a whole number from 1 to {most}")
    return value


def _number(table: Table, key: str, where: str, default: float, *, least: float = 1e-6) -> float:
    value = table.get(key, default)
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not least <= value <= 1e9  # false for NaN
    ):
        raise _bad(f"{where}: `{key}` is not a number from {least:g} to 1e9")
    return float(value)


def _known(table: Table, keys: Collection[str], where: str) -> None:
    for key in table:
        if key not in keys:
            raise _bad(
                f"{where} has the unknown key `{key[:NAME_CHARACTERS]}`; known: {', '.join(keys)}"
            )


def _table(top: Table, key: str) -> Table:
    value = top.get(key, {})
    if not isinstance(value, dict):
        raise _bad(f"`{key}` is not a table: write [{key}]")
    return value


def _tables(top: Table, key: str) -> list[Table]:
    value = top.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise _bad(f"`{key}` is not a list of tables: write [[{key}]]")
    return value


def _bad(message: str) -> BadNodes:
    return BadNodes(message)
