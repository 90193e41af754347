"""Scenarios: valid ones are read, and everything else is refused with its line and a hint."""

import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.netsim.errors import BadScenario
from shoal.netsim.scenario.format.actions import ACTIONS, NEEDS_FOR, UNDO
from shoal.netsim.scenario.format.parse import parse
from shoal.netsim.scenario.format.tables import Scenario

EXAMPLES = sorted((Path(__file__).parents[4] / "examples" / "scenarios").glob("*.toml"))

PLAIN = """\
[sim]
name = "x"
duration = "10s"

[[link]]
id = "slow"
rate = "1Mbit/s"

[[nat]]
id = "shared"
kind = "linux-drop"

[[host]]
name = "a"
count = 2
link = "slow"
program = "udp-echo"

[[host]]
name = "b"
nat = "shared"
program = "udp-echo"

[[step]]
at = "2s"
action = "partition"
groups = [["a"], ["b"]]
for = "2s"

[[expect]]
metric = "rtt.p50"
op = "<"
value = "1s"
"""


def refused(text: str) -> BadScenario:
    with pytest.raises(BadScenario) as caught:
        parse(text)
    return caught.value


def line_of(text: str, piece: str) -> int:
    return text[: text.index(piece)].count("\n") + 1


def test_a_plain_scenario() -> None:
    scenario = parse(PLAIN)
    assert scenario.sim.duration == 10.0
    assert scenario.links[0].both.rate == 125_000
    assert scenario.hosts[0].names() == ["a1", "a2"]
    assert scenario.steps[0].lasts == 2.0
    assert scenario.expects[0].value == 1.0


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_right(path: Path) -> None:
    assert isinstance(parse(path.read_text()), Scenario)


@pytest.mark.parametrize(
    ("old", "new", "says", "hint"),
    [
        ("[[link]]", "[[lnik]]", "no table `lnik`", "`link`"),
        ('duration = "10s"', 'duration = "10"', "duration: `10`: the units of a time", ""),
        ('duration = "10s"', 'durations = "10s"', "[sim] has no key `durations`", "`duration`"),
        ('duration = "10s"', 'duration = "10 parsec"', "units of a time are", ""),
        ('name = "x"', "", "[sim] needs `name`", "the name of the experiment"),
        ('name = "x"', 'name = "x"\nseeds = "9..1"', "first seed", ""),
        ('name = "x"', 'name = "x"\nsample = "1us"', "more than 100000 samples", ""),
        ('rate = "1Mbit/s"', 'rate = "1Mbps"', "units of a rate", ""),
        ('rate = "1Mbit/s"', 'queue = "1s"', "`queue` has no effect here", "`rate`"),
        ('rate = "1Mbit/s"', 'reorder_delay = "1s"', "`reorder_delay` has no effect", ""),
        ('rate = "1Mbit/s"', "burst = { bad = 0.1, good = 0.2 }", "loss_bad", ""),
        ('rate = "1Mbit/s"', "burst = { bda = 0.1 }", "`burst` has no key `bda`", ""),
        ('rate = "1Mbit/s"', 'mtu = "100B"', "`mtu` is at least 576 B", ""),
        ('rate = "1Mbit/s"', 'profile = "cabel"', "no link profile `cabel`", "`cable`"),
        ('rate = "1Mbit/s"', 'up = { dealy = "1s" }', "`up` has no key `dealy`", "`delay`"),
        ('id = "slow"', 'id = "cable"', "the link `cable` already exists", ""),
        ('kind = "linux-drop"', 'kind = "linux-dorp"', "no kind of gateway", "`linux-drop`"),
        ('kind = "linux-drop"', 'kind = "linux-drop"\nudp_neww = "1s"', "udp_neww", "`udp_new`"),
        (
            'kind = "linux-drop"',
            'kind = "linux-drop"\nmapping = "ei"',
            "[[nat]] of kind `linux-drop` has no key",
            "",
        ),
        ('kind = "linux-drop"', 'kind = "linux-drop"\ninput = "maybe"', "`maybe` is not one", ""),
        ('kind = "linux-drop"', 'kind = "linux-drop"\nbehind = "x"', "no earlier [[nat]] `x`", ""),
        ('link = "slow"', 'link = "slwo"', "no link `slwo`", "`slow`"),
        ('nat = "shared"', 'nat = "shred"', "no kind of gateway or [[nat]] `shred`", "`shared`"),
        ('nat = "shared"', 'nat = "shared"\nbehind = "shared"', "`behind` has no effect", "nat ="),
        ('nat = "shared"', 'nat = "shared"\nsite = 3', "`site` has no effect", ""),
        ('program = "udp-echo"', 'program = "udp-ehco"', "no program `udp-ehco`", "`udp-echo`"),
        ('name = "b"', 'name = "a1"', "the name `a1` is already used", ""),
        ('name = "b"', 'name = "<script>"', "is not a valid name for a host", ""),
        ("count = 2", "count = 0", "at least 1", ""),
        (
            "count = 2",
            "count = 2\nsettings = { evry = 1 }",
            "settings of `udp-echo` has no key `evry`",
            "`every`",
        ),
        ("count = 2", "count = 2\nsettings = 3", "settings: `3` is not a table", ""),
        ("count = 2", 'count = 2\nsettings = { to = "c" }', "no `udp-echo` host `c`", ""),
        ('at = "2s"', 'at = "20s"', "20 s is after the end of the run at 10 s", "`duration`"),
        ('for = "2s"', 'for = "20s"', "22 s is after the end", ""),
        ('action = "partition"', 'action = "partitoin"', "no action", "`partition`"),
        ('action = "partition"', 'action = "heal"', "`heal` has no key `groups`", ""),
        ('groups = [["a"], ["b"]]', 'groups = [["a"], ["c"]]', "no host `c`", ""),
        ('groups = [["a"], ["b"]]', 'groups = [["a"], ["a1"]]', "`a1` is in two groups", ""),
        ('groups = [["a"], ["b"]]', 'groups = [["all"], ["b"]]', "`b` is in two groups", ""),
        ('metric = "rtt.p50"', 'metric = "rtt"', "no metric `rtt`", "`rtt.p5"),
        ('metric = "rtt.p50"', 'metric = "throughput.p50"', "nothing in this scenario", "tcp-t"),
        ('op = "<"', 'op = "=<"', "no operator `=<`", "`<=`"),
        ('duration = "10s"', 'duration = "99999d"', "at most ten years", ""),
        ('duration = "10s"', 'duration = "0.1us"', "at least 1us", ""),
        ('name = "x"', f"name = 'x'\n{'a.' * 40}b = 1", "at most 30 dots", ""),
        ('name = "x"', 'name = "x"\n[sim]\nname = "x"', "[sim] is declared twice", "together"),
        ("count = 2", "count = 99999999999999999999", "at most 63 bits", ""),
        ('value = "1s"', "value = 1", "value: a time needs a unit", ""),
        ('metric = "rtt.p50"', 'invariant = "linked"', "[[expect]] has no key `op`", ""),
    ],
)
def test_errors_are_refused_with_their_line(old: str, new: str, says: str, hint: str) -> None:
    text = PLAIN.replace(old, new, 1)
    error = refused(text)
    assert says in error.message, error.message
    assert hint in error.hint, error.hint
    near = line_of(text, new.split("\n")[-1]) if new else line_of(text, "[sim]")
    section = text[: text.index(new)].rfind("[[") if new else 0
    around = {near, near + 1, text[: max(section, 0)].count("\n") + 1}  # or its table's line
    assert error.line in around, (error.line, near)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there is no [sim]"),
        ('[sim]\nname = "x"\nduration = "1s"', "there is no host"),
        ("[sim", "not valid TOML"),
        ("[sim]\nname = 1\nname = 2", "not valid TOML"),
        ("sim = 3", "`sim` has to be a table"),
        ('host = "x"\n[sim]\nname = "x"\nduration = "1s"', "`host` has to be an array of tables"),
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    ],
)
def test_files_that_are_not_scenarios(text: str, says: str) -> None:
    assert says in refused(text).message


WORLD = '[sim]\nname = "x"\nduration = "10s"\n[world]\n'


@pytest.mark.parametrize(
    ("world", "says"),
    [
        ('hosts = 3\npopulation = "home-volunteers-2025"', "no population"),
        ("hosts = 3", "`hosts` needs a `population`"),
        ('population = "home-volunteers-2026"\n[[host]]\nname = "a"', "`population` has no effect"),
        ('latency = "croe"\n[[host]]\nname = "a"', "no latency matrix"),
        ('latency = "planetlab:/nowhere"\n[[host]]\nname = "a"', "not the name of a file"),
        (
            'hosts = 2\npopulation = "home-volunteers-2026"\nprogram = "udp-echo"\n'
            'settings = { to = "a" }\n[[host]]\nname = "a"',
            "no `udp-echo` host `a`",
        ),
        ("relays = 100001", "relays: at most 100000"),
        ('[[host]]\nname = "a"\ncount = 2001', "at most 2000 whole daemons"),
        ('hosts = 2001\npopulation = "home-volunteers-2026"', "at most 2000 whole daemons"),
        (
            'hosts = 60000\npopulation = "home-volunteers-2026"\nprogram = "idle"\n'
            '[[host]]\nname = "a"\ncount = 60000\nprogram = "idle"',
            "at most 100000 hosts",
        ),
        ('latency = "planetlab:../rtt.txt"\n[[host]]\nname = "a"', "not the name of a file"),
        ('latency = "planetlab:.hidden"\n[[host]]\nname = "a"', "not the name of a file"),
        ('latency = "planetlab:rtt.txt"\n[[host]]\nname = "a"', "there is no file `rtt.txt`"),
        ('latency = "planet:rtt.txt"\n[[host]]\nname = "a"', "no form of latencies `planet`"),
        ('[[host]]\nname = "a"\nsettings = { port = 70000 }', "at most 65535"),
        ('[[host]]\nname = "a"\nprogram = "punch"\nsettings = { rounds = 10001 }', "at most 10000"),
        ('relays = 1\n[[host]]\nname = "a"', "`relays` has no effect"),
        ('[[host]]\nname = "a"\nprogram = "punch"', "there is none"),
        ('[[host]]\nname = "a"\n[churn]\nmodel = "volunteer-mix"', "[churn] has no effect"),
        ('[[host]]\nname = "a"\n[[link]]\nid = "l"', "[[link]] `l` has no effect"),
        ('[[host]]\nname = "a"\n[[nat]]\nid = "n"\nkind = "cgn"', "[[nat]] `n` has no effect"),
        ('[[host]]\nname = "a"\nsite = 2', "`site` has no effect"),
        ('spread = "1s"\n[[host]]\nname = "a"\nstart = "20s"', "after the end of the run"),
        ('[[host]]\nname = "a"\n[[step]]\nat = "1s"\naction = "clog"\ntarget = "a"', "needs `for`"),
        ('[[host]]\nname = "a"\n[[step]]\nat = "1s"\naction = "heal"\nfor = "1s"', "cannot end"),
    ],
)
def test_keys_without_effect_are_refused(world: str, says: str) -> None:
    assert says in refused(WORLD + world).message


def test_a_scale_for_the_population() -> None:
    text = WORLD + 'hosts = 9\npopulation = "home-volunteers-2026"\nprogram = "udp-echo"'
    assert parse(text, hosts=4).world.hosts == 4
    with pytest.raises(BadScenario, match="no population to scale"):
        parse(PLAIN, hosts=4)


def test_for_ends_actions_that_can_end() -> None:
    assert set(UNDO) < set(ACTIONS)
    assert all(name in UNDO for name, table in ACTIONS.items() if table in NEEDS_FOR)


# Any input gives a scenario or an error with a line.

_LINES = [line for path in EXAMPLES for line in path.read_text().splitlines()] + PLAIN.splitlines()


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_shuffled_scenarios(seed: int, changes: int) -> None:
    luck = random.Random(seed)
    lines = luck.choice([path.read_text() for path in EXAMPLES] + [PLAIN]).splitlines()
    for _ in range(changes):
        at = luck.randrange(len(lines))
        how = luck.randrange(4)
        if how == 0:
            del lines[at : at + 1]
        elif how == 1:
            lines.insert(at, luck.choice(_LINES))
        elif how == 2:
            lines[at] = re.sub(
                r'".*?"|\d+', luck.choice(['"all"', "-1", '""', "[]", "{}"]), lines[at]
            )
        else:
            lines[at] = lines[at][: luck.randrange(len(lines[at]) + 1)]
        lines = lines or [""]
    check("\n".join(lines))


@given(st.text(alphabet="[]{}=\"\n\\#.,ab1 \r\t'é\x00", max_size=60))
def test_noise(text: str) -> None:
    check(text)


def check(text: str) -> None:
    try:
        assert isinstance(parse(text), Scenario)
    except BadScenario as error:
        assert 0 <= error.line <= text.count("\n") + 1 and error.message


VALUES: Any = st.recursive(
    st.sampled_from([1, -1, 0.5, True, "all", "a", "", "1s", "5%", "1Mbit/s", 10**30]),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from(sorted(ACTIONS)), st.dictionaries(
    st.sampled_from(["at", "for", "target", "groups", "from", "to", "share", "by", "way", "rate"]),
    VALUES, max_size=5,
))  # fmt: skip
def test_any_step(action: str, keys: dict[str, Any]) -> None:
    def toml(value: Any) -> str:
        if isinstance(value, list):
            return "[" + ", ".join(map(toml, value)) + "]"
        return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')

    lines = [f'"{key}" = {toml(value)}' for key, value in keys.items()]
    check(f'{PLAIN}\n[[step]]\naction = "{action}"\n' + "\n".join(lines))


PLACES = '[sim]\nname = "x"\nduration = "10s"\n[world]\nlatency = "planetlab:rtt.txt"\n'
PLACES += '[[host]]\nname = "a"\nsite = 1\nprogram = "idle"\n'


def test_latencies_from_a_file_beside_the_scenario() -> None:
    found = parse(PLACES, beside={"rtt.txt": "0 40\n60 0\n"}.__getitem__)
    assert found.matrix is not None and found.matrix(0, 1) == 0.025
    assert found.files == {"rtt.txt": "0 40\n60 0\n"}


def test_errors_in_such_a_file_have_both_lines() -> None:
    with pytest.raises(BadScenario) as caught:
        parse(PLACES, beside={"rtt.txt": "0 40\n60 x\n"}.__getitem__)
    assert caught.value.line == 5
    assert caught.value.message == "rtt.txt:2: 'x' is not a number of milliseconds"
    with pytest.raises(BadScenario, match="no site 1"):
        parse(PLACES, beside={"rtt.txt": "0\n"}.__getitem__)


def test_a_matrix_in_seconds_is_not_read_as_milliseconds() -> None:
    beside = {"rtt.txt": "0 0.04\n0.06 0\n"}.__getitem__
    with pytest.raises(BadScenario) as caught:
        parse(PLACES, beside=beside)
    assert caught.value.line == 5
    assert "the longest round trip is 0.06, which can be seconds or" in caught.value.message
    assert 'latency_unit = "s"' in caught.value.hint
    for unit, seconds in (("s", 0.025), ("ms", 0.000025)):
        text = PLACES.replace("[world]", f'[world]\nlatency_unit = "{unit}"')
        found = parse(text, beside=beside)
        assert found.matrix is not None and found.matrix(0, 1) == pytest.approx(seconds)
    with pytest.raises(BadScenario, match="a round trip of 40 s is out of range"):
        parse(text.replace('"ms"', '"s"'), beside={"rtt.txt": "0 40\n60 0\n"}.__getitem__)
    with pytest.raises(BadScenario, match="`latency_unit` has no effect here"):
        parse(text.replace("planetlab:rtt.txt", "core"))


def test_a_large_file_is_no_scenario() -> None:
    error = refused(PLAIN + f"# {'x' * 1_100_000}")
    assert "at most 1 MiB" in error.message and "`count`" in error.hint


def test_many_hosts_are_read_in_linear_time() -> None:
    """With quadratic time these took minutes."""
    table = '[[host]]\nname = "h{}"\nprogram = "udp-echo"\n'
    began = time.process_time()
    parse(WORLD + "".join(table.format(number) for number in range(8000)))
    assert time.process_time() - began < 8
