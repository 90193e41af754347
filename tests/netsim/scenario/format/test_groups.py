"""Groups: their hosts, by seed; their links, their settings, and faults on them."""

import pytest

from shoal.netsim.errors import BadScenario
from shoal.netsim.population import profiles
from shoal.netsim.scenario.format.parse import parse
from shoal.netsim.scenario.programs.echo import EchoSettings
from shoal.netsim.scenario.run import ScenarioRun
from shoal.netsim.scenario.topology import Topology

HEAD = """\
[sim]
name = "x"
duration = "6s"
[world]
hosts = {hosts}
population = "home-volunteers-2026"
program = "udp-echo"
[[nat]]
id = "shared"
kind = "eim-eif"
[[host]]
name = "a"
count = 3
nat = "linux-drop"
program = "udp-echo"
[[host]]
name = "b"
nat = "shared"
program = "udp-echo"
[[host]]
name = "c"
program = "idle"
"""
AT = HEAD.count("\n") + 1  # the line of the first group
CRASH = '[[step]]\nat = "1s"\naction = "crash"\ntarget = "g"\n'


def made(text: str, *, seed: int = 1, hosts: int = 40, step: str = CRASH) -> Topology:
    return ScenarioRun(parse(HEAD.format(hosts=hosts) + text + step), seed).topology


def group(text: str, *, seed: int = 1, hosts: int = 40) -> list[str]:
    return made(f'[[group]]\nname = "g"\n{text}\n', seed=seed, hosts=hosts).groups["g"]


def test_all_hosts_are_the_default() -> None:
    assert group("", hosts=2) == ["a1", "a2", "a3", "b", "c", "v0", "v1"]


def test_a_share_and_a_number_are_drawn_by_the_seed() -> None:
    few = group('of = "population"\nshare = "25%"')
    assert len(few) == 10 and set(few) < {f"v{number}" for number in range(40)}
    assert few == group('of = "population"\nshare = "25%"')
    assert few != group('of = "population"\nshare = "25%"', seed=2)
    assert len(group('of = ["population", "a"]\ncount = 7')) == 7
    assert len(group('of = "a"\nshare = "1%"')) == 1  # never none


def test_neither_a_group_nor_a_host_more_changes_a_draw() -> None:
    few = group('of = "population"\ncount = 10')
    text = (
        '[[group]]\nname = "f"\ncount = 3\n[[group]]\nname = "g"\nof = "population"\ncount = 10\n'
    )
    step = CRASH + CRASH.replace('"g"', '"f"')
    assert made(text, step=step).groups["g"] == few
    further = group('of = "population"\ncount = 10', hosts=41)
    assert len({*few} - {*further}) <= 1


def test_hosts_by_their_gateway_and_by_their_class() -> None:
    assert group('of = ["a", "b", "c"]\nkind = "linux-drop"') == ["a1", "a2", "a3"]
    assert group('of = ["a", "b", "c"]\nkind = ["eim-eif", "public"]') == ["b", "c"]
    found = made('[[group]]\nname = "g"\nof = "population"\nkind = ["cgn", "symmetric"]\n')
    kinds = {found.members[name].kind for name in found.groups["g"]}
    assert kinds == {"symmetric", "carrier"}
    others = {item.kind for name, item in found.members.items() if name not in found.groups["g"]}
    assert not kinds & others


def test_without_leaves_out_the_hosts_of_another_group() -> None:
    text = '[[group]]\nname = "cut"\nof = "a"\ncount = 1\n'
    text += '[[group]]\nname = "g"\nof = "a"\nwithout = "cut"\n'
    groups = made(text).groups
    assert sorted(groups["cut"] + groups["g"]) == ["a1", "a2", "a3"]


def test_a_link_replaces_the_access_link() -> None:
    text = '[[group]]\nname = "g"\nof = ["population", "a", "b"]\nlink = "geo"\n'
    found = made(text, hosts=20)
    spec = profiles.link("geo")
    for one in found.volunteers:
        host = found.members[one.name].host
        plugs = [one.gateways[0].wan] if one.gateways else host.attachments
        assert plugs[0].up.spec == spec.up and plugs[0].down.spec == spec.down, one
    assert found.gateways["a1"].wan.up.spec == spec.up
    assert found.members["b"].host.attachments[0].up.spec == spec.up
    assert found.members["c"].host.attachments[0].up.spec != spec.up


def test_the_last_group_s_link_holds() -> None:
    text = '[[group]]\nname = "f"\nof = "a"\nlink = "dsl"\n'
    text += '[[group]]\nname = "g"\nof = "a"\ncount = 1\nlink = "geo"\n'
    found = made(text)
    specs = {name: found.gateways[name].wan.up.spec for name in ("a1", "a2", "a3")}
    assert [name for name, spec in specs.items() if spec == profiles.link("geo").up] == (
        found.groups["g"]
    )
    assert list(specs.values()).count(profiles.link("dsl").up) == 2


def test_settings_replace_only_what_they_name() -> None:
    text = '[[group]]\nname = "g"\nof = "population"\ncount = 4\nsettings = { every = "2s" }\n'
    found = made(text, hosts=10)
    slow = {name: item.settings for name, item in found.members.items()
            if isinstance(item.settings, EchoSettings) and item.settings.every == 2.0}  # fmt: skip
    assert {*slow} == {*found.groups["g"]} and len(slow) == 4
    assert all(settings.timeout == 5.0 for settings in slow.values())


def test_faults_on_part_of_a_population() -> None:
    text = '[[group]]\nname = "g"\nof = "population"\nshare = "50%"\n'
    text += '[[group]]\nname = "rest"\nof = "population"\nwithout = "g"\n'
    steps = '[[step]]\nat = "1s"\naction = "partition"\ngroups = [["g"], ["rest"]]\nfor = "2s"\n'
    steps += '[[step]]\nat = "4s"\naction = "crash"\ntarget = "g"\n'
    run = ScenarioRun(parse(HEAD.format(hosts=12) + text + steps), 1)
    result = run.go()
    off = {host.name for host in result.hosts if not host.up}
    assert off == {*run.topology.groups["g"]} and len(off) == 6
    cut = next(deed for deed in result.deeds if deed[1] == "partition")
    assert {*cut[2].split()} == {f"v{number}" for number in range(12)}


@pytest.mark.parametrize("action", ["nat.reboot", "redial"])
@pytest.mark.parametrize("word", ["population", "a", "g", "all"])
def test_gateways_of_groups(action: str, word: str) -> None:
    text = '[[group]]\nname = "g"\nof = ["population", "a"]\ncount = 3\nkind = "linux-drop"\n'
    step = CRASH + f'[[step]]\nat = "1s"\naction = "{action}"\ntarget = "{word}"\n'
    run = ScenarioRun(parse(HEAD.format(hosts=8) + text + step), 1)
    result = run.go()
    found = [deed for deed in result.deeds if deed[1] == action]
    own = [name for name in run.topology.groups[word] if name in run.topology.gateways]
    assert len(found) == len(own) > 0


def test_the_same_seed_the_same_packets() -> None:
    text = HEAD.format(hosts=12) + '[[group]]\nname = "g"\nshare = "50%"\nlink = "lte"\n' + CRASH
    assert ScenarioRun(parse(text), 1).go().digest == ScenarioRun(parse(text), 1).go().digest
    assert ScenarioRun(parse(text), 1).go().digest != ScenarioRun(parse(text), 2).go().digest


@pytest.mark.parametrize(
    ("text", "says", "after"),
    [
        ("", "`[[group]] needs `name`", 0),
        ('name = "a"', "the name `a` is already used", 1),
        ('name = "all"', "the name `all` is already used", 1),
        ('name = "g h"', "is not a valid name for a group", 1),
        ('name = "g"\nof = "q"', "no host `q`", 2),
        ('name = "g"\nwithout = "h"', "no host `h`", 2),
        ('name = "g"\nkind = "symetric"', "no kind of gateway or class `symetric`", 2),
        ('name = "g"\nlink = "dls"', "no link `dls`", 2),
        ('name = "g"\nshare = 0', "greater than 0", 2),
        ('name = "g"\nshare = 0.5\ncount = 2', "either a `share` or a `count`", 2),
        ('name = "g"\nsettings = { every = "1s" }', "the hosts run `idle` and `udp-echo`", 2),
        ('name = "g"\nof = "a"\nsettings = { evry = "1s" }', "has no key `evry`", 3),
        ('name = "g"\nof = "a"\nsettings = { to = "c" }', "no `udp-echo` host `c`", 3),
        ('name = "f"', "has no effect here: no step names it", 0),
    ],
)
def test_groups_that_are_refused(text: str, says: str, after: int) -> None:
    step = CRASH if 'name = "g"' in text else ""
    with pytest.raises(BadScenario) as caught:
        parse(HEAD.format(hosts=3) + f"[[group]]\n{text}\n" + step)
    assert says.removeprefix("`") in caught.value.message
    assert caught.value.line == AT + after


def test_groups_are_bounded() -> None:
    with pytest.raises(BadScenario, match="at most 100 groups"):
        made("".join(f'[[group]]\nname = "g{n}"\nlink = "dsl"\n' for n in range(101)), step="")


@pytest.mark.parametrize(
    ("text", "says", "after"),
    [
        ('of = "a"\ncount = 4', "needs 4 of the hosts, and with this seed there are 3", 0),
        ('of = "a"\nkind = "cgn"', "needs 1 of the hosts, and with this seed there are 0", 0),
    ],
)
def test_a_group_without_enough_hosts_ends_the_run(text: str, says: str, after: int) -> None:
    with pytest.raises(BadScenario) as caught:
        group(text)
    assert says in caught.value.message and caught.value.line == AT + after


def test_a_host_on_two_sides_is_refused_with_the_step_s_line() -> None:
    step = '[[step]]\nat = "1s"\naction = "partition"\ngroups = [["g"], ["a1"]]\n'
    with pytest.raises(BadScenario) as caught:
        made('[[group]]\nname = "g"\nof = "a"\n', step=step)
    assert "`a1` is in two groups of the partition" in caught.value.message
    assert caught.value.line == AT + 3 and "`without`" in caught.value.hint


def test_hosts_without_gateways_have_none_to_reboot() -> None:
    step = '[[step]]\nat = "1s"\naction = "nat.reboot"\ntarget = "c"\n'
    with pytest.raises(BadScenario, match="no gateway `c`"):
        made("", step=step)
