"""Volunteers: how they are drawn and built, and that adding one changes no other."""

import copy
from collections import Counter
from math import inf, sqrt
from random import Random
from typing import Any

import pytest

from shoal.netsim.errors import BadScenario
from shoal.netsim.light import LightHost, Sends
from shoal.netsim.network.packet import Addr
from shoal.netsim.population import latency, profiles
from shoal.netsim.population.data import table
from shoal.netsim.population.mix import (
    DEFAULT,
    Volunteer,
    can_punch,
    draw,
    load,
    populate,
    punch_rate,
    read,
)
from shoal.netsim.world import World


class Silent:
    """Core that does nothing."""

    wake_at = inf

    def on_datagram(self, now: float, data: bytes, source: Addr) -> Sends:
        return ()

    def on_time(self, now: float) -> Sends:
        return ()


def people(count: int, seed: int = 1) -> list[Volunteer]:
    return populate(World(seed), count, core=lambda name: Silent())


def shown(one: Volunteer) -> tuple[Any, ...]:
    """Return all that can differ between two volunteers, except addresses."""
    kinds = tuple(type(gateway).__name__ for gateway in one.gateways)
    return one.name, one.kind, one.drawn, kinds


def test_shares_are_those_of_the_population() -> None:
    """Within 99.9 % of chance, for classes, regions and IPv6."""
    population, places = load(), latency.matrix()
    count = 5000
    drawn = [draw(population, Random(n), places) for n in range(count)]
    checks = [
        *((kind.share, sum(one.kind is kind for one in drawn)) for kind in population.kinds),
        *((area.share, sum(one.region is area for one in drawn)) for area in population.regions),
        (population.ipv6, sum(one.ipv6 for one in drawn)),
    ]
    for share, found in checks:
        assert abs(found - count * share) < 3.5 * sqrt(count * share * (1 - share))
    for kind in population.kinds:
        links = Counter(one.link for one in drawn if one.kind is kind)
        assert set(links) == set(kind.links)


def test_sites_lie_in_their_region() -> None:
    places = latency.matrix()
    for n in range(200):
        one = draw(load(), Random(n), places)
        assert places.sites[one.site].region == one.region.name


def test_one_more_volunteer_changes_no_other() -> None:
    assert [shown(one) for one in people(40)] == [shown(one) for one in people(60)[:40]]
    assert [shown(one) for one in people(40)] != [shown(one) for one in people(40, seed=2)]


def test_they_are_built_as_drawn() -> None:
    world = World(1)
    found = populate(world, 150)
    assert {one.kind for one in found} == {kind.name for kind in load().kinds}
    for one in found:
        drawn, host = one.drawn, one.host
        assert host is world.hosts[one.name]
        assert len(one.gateways) == bool(drawn.kind.nat) + bool(drawn.kind.carrier)
        (plug,) = host.attachments
        outer = one.gateways[0].wan if one.gateways else plug
        assert outer.up.spec == profiles.link(drawn.link).up
        assert outer.site == drawn.site
        if one.gateways:
            assert plug.subnet is one.gateways[0].inside
            wifi = profiles.overlay("bad-wifi").up
            assert (plug.up.spec == wifi) == drawn.bad_wifi
        assert any(":" in address for address in host.addresses()) == drawn.ipv6
        assert any(":" not in address for address in host.addresses())
        if drawn.kind.carrier:
            assert one.gateways[0].outside is one.gateways[1].inside


def test_light_hosts_are_the_same_volunteers() -> None:
    whole = populate(World(1), 30)
    light = people(30)
    assert [shown(one) for one in whole] == [shown(one) for one in light]
    assert all(isinstance(one.host, LightHost) for one in light)


def test_the_analytic_success_of_punching_is_the_published_one() -> None:
    """About 68 % by the shares; the published 70 % +- 7.1 %."""
    assert punch_rate(load()) == pytest.approx(0.70, abs=0.071)


def test_the_analytic_check_can_fail() -> None:
    entry = copy.deepcopy(table(f"{DEFAULT}.toml"))
    for item in entry["class"]:
        item["percent"] = {"port-restricted": 22, "symmetric": 31}.get(
            item["name"], item["percent"]
        )
    assert punch_rate(read(entry)) < 0.6


@pytest.mark.parametrize(
    ("a", "b", "works"),
    [
        ("open", "symmetric", True),
        ("port", "late", True),
        ("port", "symmetric", False),
        ("late", "symmetric", False),
        ("symmetric", "symmetric", False),
        ("open", "blocked", False),
    ],
)
def test_pairs_that_can_punch(a: str, b: str, works: bool) -> None:
    assert can_punch(a, b) == can_punch(b, a) == works


def spoilt(change: Any) -> str:
    entry = copy.deepcopy(table(f"{DEFAULT}.toml"))
    change(entry)
    with pytest.raises(BadScenario) as caught:
        read(entry)
    return caught.value.message


def test_a_population_that_does_not_add_up_is_refused() -> None:
    assert "classes sum up to 101 %" in spoilt(lambda e: e["class"][0].update(percent=9))
    assert "regions" in spoilt(lambda e: e["regions"]["eu"].update(percent=50))
    assert "links of class public" in spoilt(lambda e: e["class"][0].update(links={"dsl": 1}))
    assert "no link profile `dls`" in spoilt(lambda e: e["class"][0].update(links={"dls": 100}))
    assert "no `punch` of class public" in spoilt(lambda e: e["class"][0].update(punch="ports"))
    with pytest.raises(BadScenario, match="no population"):
        load("home-volunteer-2026")
