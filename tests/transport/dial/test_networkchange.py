"""Detection of network changes: by addresses, or by time that passed in sleep."""

from shoal.transport import defaults
from shoal.transport.dial.networkchange import SeenNetwork
from shoal.transport.host.real import RealHost
from shoal.transport.host.seam import Interface


class Moving(RealHost):
    """A laptop whose clocks and interfaces are set by the test."""

    at = 100.0
    asleep = 0.0
    address = "192.168.1.2"

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at + self.asleep

    def interfaces(self) -> list[Interface]:
        return [Interface("wlan0", self.address, 24)]


def test_an_unchanged_network_is_not_reported() -> None:
    host = Moving()
    network = SeenNetwork(host)
    host.at += 60
    assert not network.has_changed()


def test_another_address_is_reported_once() -> None:
    host = Moving()
    network = SeenNetwork(host)
    host.address = "10.0.0.7"
    assert network.has_changed()
    assert not network.has_changed()


def test_a_sleep_is_reported_but_a_small_clock_change_is_not() -> None:
    host = Moving()
    network = SeenNetwork(host)
    host.asleep += defaults.SLEPT_S / 2
    assert not network.has_changed()
    host.asleep += defaults.SLEPT_S * 2
    assert network.has_changed()
    assert not network.has_changed()
