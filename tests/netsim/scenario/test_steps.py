"""Steps: their effect on the hosts, when it ends, and what is recorded."""

from typing import Any

import pytest

HOSTS = """
[world]
latency = "5ms"
[[host]]
name = "a"
program = "udp-echo"
settings = { to = "b", every = "100ms" }
[[host]]
name = "b"
program = "udp-echo"
settings = { to = [] }
[[host]]
name = "home"
nat = "linux-drop"
program = "udp-echo"
settings = { to = "b", every = "100ms" }
"""


def step(action: str, rest: str, at: str = "2s") -> str:
    return f'[[step]]\nat = "{at}"\naction = "{action}"\n{rest}\n'


def answered(run: Any, name: str) -> int:
    return int(run.topology.members[name].program.result.answered)


@pytest.mark.parametrize(
    ("action", "rest", "lost"),  # of 100 echoes of `a`
    [
        ("partition", 'groups = [["a"], ["b"]]', 80),
        ("partition", 'groups = [["a"], ["b"]]\nfor = "3s"', 30),
        ("partition", 'groups = [["b"], ["a"]]\noneway = true\nfor = "3s"', 30),
        ("loss", 'from = "a"\nto = "b"\nshare = "100%"\nfor = "3s"', 30),
        ("delay", 'from = "a"\nto = "b"\nby = "9s"\nfor = "3s"', 30),
        ("clog", 'target = "b"\nfor = "7900ms"', 79 - 50),  # the echoes of the last 5 s are in time
        ("crash", 'target = "b"\nfor = "3s"', 30),
        ("sleep", 'target = "b"\nfor = "3s"', 30),
        ("link.down", 'target = "b"\nfor = "3s"', 30),
        ("cut", 'target = "b"\nway = "up"\nfor = "3s"', 30),
        ("crash", 'target = "home"', 0),
    ],
)
def test_echoes_that_are_lost(run_text: Any, action: str, rest: str, lost: int) -> None:
    run = run_text(HOSTS + step(action, rest))
    assert answered(run, "a") == pytest.approx(100 - lost, abs=3)
    (happening,) = run.result().happenings
    assert happening.at == 2.0 and happening.what == action
    if "for" in rest and "clog" not in action:
        assert happening.until == 5.0


def test_heal_ends_every_partition(run_text: Any) -> None:
    cut = step("partition", 'groups = [["a"], ["b"]]')
    assert answered(run_text(HOSTS + cut), "a") < 25
    assert answered(run_text(HOSTS + cut + step("heal", "", "3s")), "a") > 85


def test_clocks(run_text: Any) -> None:
    run = run_text(
        HOSTS
        + step("clock", 'target = "a"\nstep = "-3s"')
        + step("drift", 'target = "b"\nrate = 0.5')
    )
    a, b, home = (run.world.hosts[name].wall() for name in ("a", "b", "home"))
    assert a - home == pytest.approx(-3)
    assert b - home == pytest.approx(4, abs=0.1)


@pytest.mark.parametrize("action", ["nat.reboot", "redial"])
def test_the_gateway_of_a_host_is_meant_by_its_name(run_text: Any, action: str) -> None:
    before = run_text(HOSTS).world.gateways["home/gateway"].address
    run = run_text(HOSTS + step(action, 'target = "home"'))
    assert [deed[1] for deed in run.result().deeds] == [action]
    assert (run.world.gateways["home/gateway"].address != before) is (action == "redial")
    assert answered(run, "home") > 95


def test_a_host_that_is_off_at_its_start_is_not_started(run_text: Any) -> None:
    late = HOSTS.replace('name = "a"', 'name = "a"\nstart = "3s"')
    run = run_text(late + step("crash", 'target = "a"'))
    assert answered(run, "a") == 0 and not run.world.hosts["a"].up
    again = step("restart", 'target = "a"', "5s")
    assert answered(run_text(late + step("crash", 'target = "a"') + again), "a") > 45


def test_words_for_several_hosts(run_text: Any) -> None:
    run = run_text(HOSTS + step("crash", 'target = "all"'))
    assert run.result().metrics["hosts.up"] == 0
