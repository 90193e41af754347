"""Nothing is silently ignored: every knob of every table changes the run that has it."""

from dataclasses import fields
from functools import cache
from typing import Any

import pytest

from shoal.netsim.errors import BadScenario
from shoal.netsim.nat.kinds import KINDS, knobs_of
from shoal.netsim.scenario.format import vocabulary
from shoal.netsim.scenario.format.actions import ACTIONS
from shoal.netsim.scenario.format.parse import parse
from shoal.netsim.scenario.format.source import knobs
from shoal.netsim.scenario.format.tables import (
    Churn,
    DirectionTable,
    GroupTable,
    HostTable,
    NatTable,
    Sim,
    WorldTable,
)
from shoal.netsim.scenario.programs import SETTINGS
from shoal.netsim.scenario.run import ScenarioRun

ECHO = """\
[sim]
name = "x"
duration = "6s"
{sim}
[world]
{world}
[[link]]
id = "l"
delay = "5ms"
{link}
[[nat]]
id = "outer"
kind = "eim-eif"
{outer}
[[nat]]
id = "n"
kind = "linux-drop"
behind = "outer"
{nat}
[[host]]
name = "a"
link = "l"
program = "udp-echo"
settings = {{ to = ["b"], every = "300ms" }}
{host}
[[host]]
name = "b"
program = "udp-echo"
settings = {{ {settings} }}
[[host]]
name = "c"
nat = "n"
program = "udp-echo"
{end}
"""
PUNCH = """\
[sim]
name = "x"
duration = "60s"
{sim}
[world]
hosts = 12
population = "home-volunteers-2026"
latency = "core"
relays = 1
program = "punch"
settings = {{ {settings} }}
{world}
{end}
"""
TRANSFER = """\
[sim]
name = "x"
duration = "6s"
[[link]]
id = "l"
rate = "8Mbit/s"
[[host]]
name = "a"
count = 3
link = "l"
program = "tcp-transfer"
settings = {{ {settings} }}
"""
HOLES = ("sim", "outer", "world", "link", "nat", "host", "settings", "end")


def fill(text: str, **given: str) -> str:
    return text.format(**dict.fromkeys(HOLES, "") | given)


def fingerprint(text: str) -> Any:
    """Return all that shows of a run: its packets, its figures, its hosts and their clocks."""
    run = ScenarioRun(parse(text), 3)
    result = run.go()
    walls = [(host.name, host.wall()) for host in run.world.hosts.values()]
    return result.digest, result.series, result.name, [h.name for h in result.hosts], walls


fingerprint_once = cache(fingerprint)  # of a text that many cases share


def step(action: str, rest: str) -> str:
    return f'[[step]]\nat = "1s"\naction = "{action}"\n{rest}\n'


# (table, knob): the text without it, and with it.
CASES: dict[tuple[str, str], tuple[str, dict[str, str]]] = {
    ("sim", "sample"): (ECHO, {"sim": 'sample = "2s"'}),
    ("world", "latency"): (ECHO, {"world": 'latency = "30ms"'}),
    ("world", "spread"): (ECHO, {"world": 'spread = "3s"'}),
    ("nat", "link"): (ECHO, {"nat": 'link = "dsl"'}),
    ("nat", "site"): (ECHO, {"outer": "site = 9", "world": 'latency = "core"'}),
    ("host", "count"): (ECHO, {"end": '[[host]]\nname = "d"\ncount = 2\nprogram = "udp-echo"'}),
    ("host", "nat"): (ECHO, {"host": 'nat = "linux-drop"'}),
    ("host", "behind"): (ECHO, {"host": 'nat = "linux-drop"\nbehind = "outer"'}),
    ("host", "site"): (ECHO, {"host": "site = 9", "world": 'latency = "core"'}),
    ("host", "clock"): (ECHO, {"host": 'clock = "3s"'}),
    ("host", "drift"): (ECHO, {"host": "drift = 0.1"}),
    ("host", "start"): (ECHO, {"host": 'start = "2s"'}),
    ("link", "profile"): (ECHO, {"link": 'profile = "geo"'}),
    ("link", "delay"): (ECHO, {"link": 'up = { delay = "90ms" }'}),
    ("link", "jitter"): (ECHO, {"link": 'jitter = "20ms"'}),
    ("link", "rate"): (ECHO, {"link": 'rate = "9kbit/s"'}),
    ("link", "queue"): (ECHO, {"link": 'rate = "1kbit/s"\nqueue = "1s"'}),
    ("link", "loss"): (ECHO, {"link": 'loss = "30%"'}),
    ("link", "burst"): (ECHO, {"link": "burst = { bad = 0.3, good = 0.3, loss_bad = 1.0 }"}),
    ("link", "reorder"): (ECHO, {"link": "reorder = 0.5"}),
    ("link", "reorder_delay"): (ECHO, {"link": 'reorder = 0.5\nreorder_delay = "1s"'}),
    ("link", "duplicate"): (ECHO, {"link": "down = { duplicate = 0.5 }"}),
    ("link", "mtu"): (ECHO, {"link": 'mtu = "600B"', "end": ""}),
    ("world", "hosts"): (PUNCH, {"end": "# another number of hosts, below"}),
    ("punch", "rounds"): (PUNCH, {"settings": "rounds = 2"}),
    ("punch", "every"): (PUNCH, {"settings": 'every = "3s"'}),
    ("punch", "timeout"): (PUNCH, {"settings": 'timeout = "1s"'}),
    ("udp-echo", "to"): (ECHO, {"settings": 'to = ["a"]'}),
    ("udp-echo", "every"): (ECHO, {"settings": 'every = "200ms"'}),
    ("udp-echo", "size"): (ECHO, {"settings": 'size = "100B"'}),
    ("tcp-transfer", "to"): (TRANSFER, {"settings": "to = []"}),
    ("tcp-transfer", "size"): (TRANSFER, {"settings": 'size = "9kB"'}),
    ("tcp-transfer", "every"): (TRANSFER, {"settings": 'every = "3s"'}),
    ("tcp-transfer", "timeout"): (TRANSFER, {"settings": 'timeout = "500ms"'}),
    ("partition", "groups"): (ECHO, {"end": step("partition", 'groups = [["a"], ["b"]]')}),
    ("partition", "oneway"): (
        ECHO, {"end": step("partition", 'groups = [["b"], ["a"]]\noneway = true')},
    ),
    ("loss", "from"): (ECHO, {"end": step("loss", 'from = "a"\nto = "b"\nshare = "100%"')}),
    ("delay", "from"): (ECHO, {"end": step("delay", 'from = "a"\nto = "b"\nby = "1s"')}),
    ("clog", "target"): (ECHO, {"end": step("clog", 'target = "a"\nfor = "2s"')}),
    ("swizzle", "target"): (ECHO, {"end": step("swizzle", 'target = "all"\nfor = "2s"')}),
    ("heal", ""): (
        ECHO,
        {"end": step("partition", 'groups = [["a"], ["b"]]')
            + step("heal", "").replace('"1s"', '"2s"')},
    ),
    ("crash", "target"): (ECHO, {"end": step("crash", 'target = "a"')}),
    ("restart", "target"): (ECHO, {"end": step("restart", 'target = "a"')}),
    ("sleep", "target"): (ECHO, {"end": step("sleep", 'target = "a"\nfor = "2s"')}),
    ("resume", "target"): (
        ECHO,
        {"end": step("sleep", 'target = "a"') + step("resume", 'target = "a"').replace("1s", "2s")},
    ),
    ("clock", "target"): (ECHO, {"end": step("clock", 'target = "a"\nstep = "-3s"')}),
    ("drift", "target"): (ECHO, {"end": step("drift", 'target = "a"\nrate = -0.1')}),
    ("nat.reboot", "target"): (
        ECHO, {"end": step("nat.reboot", 'target = "n"'), "nat": 'source = "random"'},
    ),
    ("redial", "target"): (ECHO, {"end": step("redial", 'target = "outer"')}),
    ("link.down", "target"): (ECHO, {"end": step("link.down", 'target = ["a", "n"]')}),
    ("link.up", "target"): (
        ECHO,
        {"end": step("link.down", 'target = "a"')
            + step("link.up", 'target = "a"').replace('"1s"', '"2s"')},
    ),
    ("cut", "target"): (ECHO, {"end": step("cut", 'target = "a"\nway = "down"')}),
}  # fmt: skip
# the text to compare with, if not the one without the knob
WITHOUT: dict[tuple[str, str], dict[str, str]] = {
    ("nat", "site"): {"world": 'latency = "core"'},
    ("host", "site"): {"world": 'latency = "core"'},
    ("host", "behind"): {"host": 'nat = "linux-drop"'},
    ("link", "queue"): {"link": 'rate = "1kbit/s"'},
    ("link", "reorder_delay"): {"link": "reorder = 0.5"},
    ("partition", "oneway"): {"end": step("partition", 'groups = [["a"], ["b"]]')},
    ("heal", ""): {"end": step("partition", 'groups = [["a"], ["b"]]')},
    ("resume", "target"): {"end": step("sleep", 'target = "a"')},
    ("link.up", "target"): {"end": step("link.down", 'target = "a"')},
    ("nat.reboot", "target"): {"nat": 'source = "random"'},
}
ELSEWHERE = {
    ("sim", "name"), ("sim", "duration"),  # every scenario has them
    ("sim", "seeds"), ("sim", "strict"), ("sim", "trace"),  # tests/cli/commands/test_sim.py
    ("world", "population"), ("world", "relays"), ("world", "program"), ("world", "settings"),
    ("churn", "model"),  # tests/netsim/scenario/test_run.py
    ("world", "latency_unit"),  # test_parse.py
    *(("group", name) for name in knobs(GroupTable)),  # test_groups.py
    ("nat", "id"), ("nat", "kind"), ("nat", "behind"),
    ("host", "name"), ("host", "link"), ("host", "program"), ("host", "settings"),
    ("udp-echo", "timeout"),  # changes what counts as answered: test_run.py
    *(("daemon", name) for name in knobs(SETTINGS["daemon"])),  # test_daemons.py
    ("generate", ""), ("disk.full", ""), ("disk.read-only", ""), ("disk.lost-syncs", ""),
}  # fmt: skip


def test_no_knob_is_forgotten() -> None:
    tables: dict[str, type] = {
        "sim": Sim, "world": WorldTable, "nat": NatTable, "host": HostTable, "link": DirectionTable,
        "churn": Churn, "group": GroupTable, **SETTINGS,
    }  # fmt: skip
    wanted = {(name, knob) for name, table in tables.items() for knob in knobs(table)}
    wanted.add(("link", "profile"))
    missing = wanted - set(CASES) - ELSEWHERE
    assert not missing, f"no case shows what these do: {missing}"
    steps = {name for name, _ in CASES} | {name for name, _ in ELSEWHERE}
    assert set(ACTIONS) <= steps, set(ACTIONS) - steps


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_knob_has_an_effect(case: tuple[str, str]) -> None:
    text, given = CASES[case]
    plain = fill(text, **WITHOUT.get(case, {}))
    if case == ("world", "hosts"):
        assert fingerprint_once(plain) != fingerprint(plain.replace("hosts = 12", "hosts = 13"))
    elif case == ("link", "mtu"):
        big = 'size = "900B", to = ["a"]'
        assert fingerprint_once(fill(text, settings=big)) != fingerprint(
            fill(text, settings=big, **given)
        )
    else:
        assert fingerprint_once(plain) != fingerprint(fill(text, **given))


def test_the_same_text_gives_the_same_run() -> None:
    """Otherwise the test above would say nothing."""
    assert fingerprint(fill(ECHO)) == fingerprint(fill(ECHO))
    assert fingerprint(fill(PUNCH)) == fingerprint(fill(PUNCH))


# Gateways.


@pytest.mark.parametrize("kind", KINDS)
def test_every_knob_of_a_gateway_is_offered_or_named(kind: str) -> None:
    offered = set(vocabulary.nat_knobs(kind))
    assert set(knobs_of(kind)) - vocabulary.NOT_OFFERED <= offered
    assert offered <= {*knobs_of(kind), "ipv6"}


NAT = """\
[sim]
name = "x"
duration = "1s"
[[nat]]
id = "n"
kind = "{kind}"
{knobs}
[[host]]
name = "a"
nat = "n"
program = "idle"
"""


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("linux-drop", 'overlay_s = "3s"', "no effect without `overlay`"),
        ("linux-drop", 'filtering6 = "ei"', "no effect without `ipv6`"),
        ("eim-apdf", "block_size = 64", "no effect without `ports"),
        ("eim-apdf", 'ports = "block"\nblock_size = 99999', "block_size"),
        ("linux-drop", 'inside = "no network"', "no network"),
        ("eim-apdf", "hairpin = true", "not one of external"),
        ("linux-drop", 'hairpin = "off"', "neither true nor false"),
        ("linux-drop", 'udp_new = "-1s"', "cannot be negative"),
    ],
)
def test_invalid_gateways_are_refused(kind: str, text: str, says: str) -> None:
    with pytest.raises(BadScenario) as caught:
        parse(NAT.format(kind=kind, knobs=text))
    assert says in caught.value.message and caught.value.line in range(4, 9)


@pytest.mark.parametrize(
    "text",
    ['udp_new = "3s"', "ipv6 = true", 'overlay = "full-cone"\noverlay_s = "3s"', "igd = true"],
)
def test_valid_gateways_are_built(text: str) -> None:
    run = ScenarioRun(parse(NAT.format(kind="linux-drop", knobs=text)), 1)
    assert "n" in run.world.gateways
    run.go()


def test_fields_of_tables_are_frozen() -> None:
    tables: list[type] = [
        Sim,
        WorldTable,
        NatTable,
        HostTable,
        DirectionTable,
        Churn,
        *ACTIONS.values(),
    ]
    for table in tables:
        assert table.__dataclass_params__.frozen, table  # type: ignore[attr-defined]
        assert all(item.name for item in fields(table))
