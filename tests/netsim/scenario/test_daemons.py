"""Scenarios of whole daemons: each setting reaches the daemon, and its metrics are measured."""

from collections.abc import Callable
from typing import Any

import pytest

from shoal.netsim.errors import BadScenario, SimError
from shoal.netsim.scenario.format.source import knobs
from shoal.netsim.scenario.programs import SETTINGS
from shoal.netsim.scenario.programs.daemon import PROFILES, RATE_LEAST, DaemonProgram

THREE = """
[[host]]
name = "n"
count = 3
{host}
{end}
"""


def test_three_daemons(run_text: Any) -> None:
    expected = "".join(
        f'[[expect]]\ninvariant = "{name}"\nwithin = "9s"\n' for name in ("members", "linked")
    )
    asked = '[[step]]\nat = "9s"\naction = "generate"\ntarget = "n2"\ntokens = 4\n'
    lost = '[[step]]\nat = "9500ms"\naction = "generate"\ntarget = "n3"\nmodel = "none"\n'
    run = run_text(THREE.format(host="", end=expected + asked + lost), duration="12s")
    result = run.result()
    assert result.met, result.verdicts
    assert result.metrics["boot"]["count"] == 3
    assert result.metrics["links.count"] == 3 and result.metrics["members.known"] == 1.0
    assert result.metrics["generate.success_rate"] == 0.5
    assert result.metrics["generate.latency"]["count"] == 1
    assert result.pairs == {"what": "linked", "classes": ["public"], "cells": [[[3, 3]]]}


def test_a_crash_is_seen_and_a_restart_heals(run_text: Any) -> None:
    end = (
        '[[step]]\nat = "6s"\naction = "crash"\ntarget = "n3"\nfor = "8s"\n'
        '[[expect]]\ninvariant = "connected"\nwithin = "6s"\nafter = "restart"\n'
        '[[expect]]\ninvariant = "members"\nwithin = "5ms"\nafter = "restart"\n'
    )
    run = run_text(THREE.format(host="settings = { engine = false }", end=end), duration="21s")
    result = run.result()
    assert [verdict.met for verdict in result.verdicts] == [True, False]
    assert result.metrics["boot"]["count"] == 4


def settings_of(run: Any, name: str) -> Any:
    program = run.topology.members[name].program
    assert isinstance(program, DaemonProgram)
    return program._daemon


SETTINGS_SEEN: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "bootstrap": ('["n2"]', lambda daemon: len(daemon.config.bootstrap) == 1),
    "profile": ('"raspberry"', lambda daemon: daemon.profile.name == "raspberry"),
    "engine": ("false", lambda daemon: daemon._engine is False),
    "tokens": ('"model"', lambda daemon: daemon._tokens == "model"),
    "model": ('"tiny"', lambda daemon: daemon.config.model == "tiny"),
    "layers": ('"0:2"', lambda daemon: daemon.config.layers == (0, 2)),
    "memory": ('"1GiB"', lambda daemon: daemon.config.memory == 1 << 30),
    "dtype": ('"bfloat16"', lambda daemon: daemon.config.dtype == "bfloat16"),
    "port": ("4100", lambda daemon: daemon.config.port == 4100),
    "links": ("2", lambda daemon: daemon.config.links == 2),
    "relay": ('"none"', lambda daemon: daemon.config.relay == 0),
    "up": ('"4Mbit/s"', lambda daemon: daemon.config.up == 500_000),
    "down": ('"1MB/s"', lambda daemon: daemon.config.down == 1_000_000),
}


def test_every_setting_is_tried() -> None:
    assert set(knobs(SETTINGS["daemon"])) == set(SETTINGS_SEEN)


@pytest.mark.parametrize("name", SETTINGS_SEEN)
def test_a_setting_reaches_the_daemon(run_text: Any, name: str) -> None:
    value, seen = SETTINGS_SEEN[name]
    host = f"settings = {{ {name} = {value} }}"
    run = run_text(THREE.format(host=host, end=""), duration="200ms")
    assert seen(settings_of(run, "n1"))
    plain = run_text(THREE.format(host="", end=""), duration="200ms")
    assert not seen(settings_of(plain, "n1"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ('profile = "dekstop"', "no profile `dekstop`"),
        ('layers = "3:1"', "is not a range of layers"),
        ('layers = "a"', "is not a range of layers"),
        ('memory = "0B"', "to offer some memory"),
        ('memory = "4 gigs"', "units of a size"),
        ('dtype = "int8"', "`int8` is not one of"),
        ('engine = false, model = "tiny"', "`model` has no effect"),
        ('bootstrap = "m"', "no `daemon` host `m`"),
        ("port = 0", "at least 1"),
        ('up = "9kB/s"', "a daemon's rates are at least 10 kB/s"),
        ('relay = "0B/s"', "a rate has to be greater than 0"),
        ('down = "none"', "is not a rate"),
    ],
)
def test_settings_that_are_refused(run_text: Any, settings: str, says: str) -> None:
    with pytest.raises(BadScenario) as caught:
        run_text(THREE.format(host=f"settings = {{ {settings} }}", end=""))
    assert says in caught.value.message and caught.value.line == 8


def test_daemons_without_a_public_one_are_refused(run_text: Any) -> None:
    with pytest.raises(BadScenario, match="no daemon has a public address"):
        run_text(THREE.format(host='nat = "linux-drop"', end=""))


def test_the_least_rate_is_that_of_the_daemon() -> None:
    from shoal.node.defaults import RATE_LEAST as OF_NODE

    assert RATE_LEAST == OF_NODE


@pytest.mark.ci
def test_a_relay_links_homes_that_cannot_reach_each_other(run_text: Any) -> None:
    """Two homes whose gateways give each peer another port can only meet through the public
    daemon.
    """
    homes = '[[host]]\nname = "h"\ncount = 2\nnat = "apdm-apdf"\nsettings = {{ {} }}\n'
    for relay, linked in (('"1MB/s"', 1.0), ('"none"', 2 / 3)):
        settings = f"settings = {{ engine = false, relay = {relay} }}\n"
        text = f'[[host]]\nname = "p"\n{settings}' + homes.format("engine = false")
        result = run_text(text, duration="60s").result()
        assert result.metrics["links.pairs"] == pytest.approx(linked), relay


def test_the_profiles_are_those_of_the_hardware() -> None:
    from shoal.netsim.daemons.profile import PROFILES as HARDWARE

    assert set(PROFILES) == set(HARDWARE)


def test_daemons_behind_gateways_know_the_public_one(run_text: Any) -> None:
    text = '[[host]]\nname = "public"\n' + THREE.format(host='nat = "linux-drop"', end="")
    result = run_text(text.replace("[[host]]", "[[host]]\nsettings = { engine = false }")).result()
    assert result.metrics["links.count"] >= 3
    assert result.pairs["classes"] == ["linux-drop", "public"]


DISKS: dict[str, Callable[[Any], bool]] = {
    "disk.full": lambda disk: disk.free == 0,
    "disk.read-only": lambda disk: bool(disk.read_only),
    "disk.lost-syncs": lambda disk: bool(disk.lost_syncs),
}


@pytest.mark.parametrize("action", DISKS)
def test_faults_of_a_disk(run_text: Any, action: str) -> None:
    end = f'[[step]]\nat = "1s"\naction = "{action}"\ntarget = "n2"\n'
    host = "settings = { engine = false }"
    run = run_text(THREE.format(host=host, end=end), duration="2s")
    disks = {name: DISKS[action](run.world.hosts[name].disk) for name in ("n1", "n2")}
    assert disks == {"n1": False, "n2": True}
    run = run_text(THREE.format(host=host, end=end + 'for = "500ms"\n'), duration="2s")
    assert not DISKS[action](run.world.hosts["n2"].disk)


def test_a_host_without_a_daemon_has_no_disk(run_text: Any) -> None:
    end = '[[step]]\nat = "1s"\naction = "disk.full"\ntarget = "n2"\n'
    with pytest.raises(BadScenario, match="`n2` does not run a daemon"):
        run_text(THREE.format(host='program = "idle"', end=end))
    with pytest.raises(SimError, match="no disk before its daemon starts"):
        run_text(THREE.format(host='start = "2s"', end=end))
