"""Simulated lab for the probes. Both of its gateways are of the kind under test."""

from collections.abc import Mapping
from typing import Any

import trio

from ...host import CURRENT
from ...world import World
from . import catalogue as probes

DELAY_S = 0.0001  # between two attachments, similar to that of a bridge of real interfaces


class SimLab:
    """Simulated `Lab`. Both gateways get the settings `knobs`, and the UDP timeouts `TIMERS` unless
    `knobs` sets others.
    """

    def __init__(self, kind: str, *, seed: int = 0, **knobs: object) -> None:
        self.world = World(seed=seed, latency=DELAY_S)
        world = self.world
        given: dict[str, Any] = {**probes.TIMERS, **knobs}
        self.gates = {
            "gate_a": world.gateway("gate_a", kind, **given),
            "gate_b": world.gateway("gate_b", kind, **given),
        }
        self._hosts = {
            "a1": world.host("a1", behind=self.gates["gate_a"]),
            "a2": world.host("a2", behind=self.gates["gate_a"]),
            "b1": world.host("b1", behind=self.gates["gate_b"]),
            "server": world.host("server"),
        }
        server = self._hosts["server"].attachments[0]
        world.internet.assign(server, world.public_address())
        self._hosts["server"].addresses_changed()
        self.addresses: Mapping[str, str] = {
            name: host.addresses()[0] for name, host in self._hosts.items()
        } | {"server2": server.addresses[1]} | {
            name: gate.address for name, gate in self.gates.items()
        }  # fmt: skip

    def socket(self, host: str, kind: int) -> trio.socket.SocketType:
        """Return a new socket on a host, to be used while the world runs."""
        token = CURRENT.set(self._hosts[host])
        try:
            return trio.socket.socket(trio.socket.AF_INET, kind)
        finally:
            CURRENT.reset(token)

    def run(self, names: tuple[str, ...] = tuple(probes.PROBES)) -> probes.Found:
        """Return the results of the named probes."""
        found: probes.Found = self.world.run(probes.run, self, names)
        return found
