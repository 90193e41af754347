"""Link profiles by name, compared with the table that they come from."""

from random import Random
from statistics import median

import pytest

from shoal.netsim.errors import BadScenario
from shoal.netsim.network.link import LOST, Pipe
from shoal.netsim.population.profiles import link, names, overlay, overlays

# One-way p50 and jitter in ms, down and up in Mbit/s, buffer in ms: the study's table.
TABLE = {
    "fibre": (3, 1, 500, 300, 50),
    "cable": (8, 4, 300, 20, 250),
    "dsl": (15, 3, 40, 8, 400),
    "lte": (25, 12, 40, 10, 600),
    "5g": (12, 6, 150, 25, 300),
    "leo": (25, 8, 120, 15, 200),
    "geo": (300, 20, 50, 3, 800),
}


def test_there_is_every_profile_of_the_table() -> None:
    assert names() == list(TABLE)
    assert overlays() == ["bad-wifi"]


@pytest.mark.parametrize("name", TABLE)
def test_a_profile_delays_as_its_table_says(name: str) -> None:
    latency, jitter, down, up, buffer = TABLE[name]
    spec = link(name)
    assert (spec.down.rate, spec.up.rate) == pytest.approx((down * 1e6 / 8, up * 1e6 / 8))
    assert spec.down.queue == spec.up.queue == pytest.approx(buffer / 1000)
    pipe = Pipe(spec.down, Random(1))
    offered = [(n * 0.37, pipe.offer(n * 0.37, 100)) for n in range(3000)]
    delays = [1000 * (when - now) for now, when in offered if when != LOST]
    assert median(delays) == pytest.approx(latency, rel=0.03)
    spikes = 45 if name == "leo" else 0
    assert min(delays) >= latency - jitter and max(delays) <= latency + jitter + spikes + 1


def test_a_low_satellite_spikes_at_its_handover() -> None:
    """The round trip rises by about 140 ms at the start of each 15 s, by about 75 ms at
    their end.
    """
    cycle = link("leo").up.cycle
    assert cycle is not None
    base = 2 * 0.025
    assert base + 2 * cycle.at(45.0)[0] == pytest.approx(0.14)
    assert base + 2 * cycle.at(44.9)[0] == pytest.approx(0.075, abs=0.002)
    assert cycle.at(5.0) == (0.0, 0.0)


def test_an_overlay_adds_and_caps() -> None:
    both, cable, wifi = link("cable+bad-wifi").down, link("cable").down, overlay("bad-wifi").down
    assert both.delay + both.jitter / 2 == pytest.approx(0.008 + 0.015)
    assert both.rate == wifi.rate and both.queue == wifi.queue
    assert both.loss == pytest.approx(1 - (1 - cable.loss) * (1 - wifi.loss))
    assert both.burst == wifi.burst
    assert link("dsl+bad-wifi").up.rate == link("dsl").up.rate  # it was the slower one
    assert link("leo+bad-wifi").up.cycle == link("leo").up.cycle


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cabel", "did you mean `cable`?"),
        ("bad-wifi", "known are `5g`, `cable`, `dsl`, `fibre`, `geo`, `leo`, `lte`"),
        ("cable+wifi", "did you mean `bad-wifi`?"),
        ("", "known are `5g`"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(BadScenario) as caught:
        link(name)
    assert caught.value.hint.startswith(hint)
