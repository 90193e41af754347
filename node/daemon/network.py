"""The parts of a daemon that communicate with peers: links, membership, state and the DHT."""

from collections.abc import Sequence
from dataclasses import replace

from ...dht.records.record import ShardBody
from ...state.defaults import WRITE_HOLD
from ...state.errors import StateError, StoreRefused
from ...state.listing import Listing
from ...state.membership.membership import Membership
from ...state.service import State
from ...state.settings import StateSettings
from ...tasks.engine.interface import Parts
from ...tasks.inference.courier import Courier
from ...tasks.inference.stagesessions import StageSessions
from ...tasks.usage.paying import Payers
from ...transport.address import Address
from ...transport.dial.endpoint import Endpoint
from ...transport.identity import PeerId
from ...transport.lane.shaper import Shaper
from ...transport.link.link import Link
from ...transport.strategies.dialer import Dialer
from .. import defaults
from ..control.diagnosis import Diagnosis
from ..folder import disk_error
from ..settings.applying import caps_of, relaying_of
from ..swarm.discovery import Discovery
from ..swarm.remembering import Remembering
from .base import Base
from .interest import keeps_all
from .listening import Listening
from .mishaps import Mishaps


class NetworkParts:
    """The parts of one daemon that communicate with peers."""

    def __init__(self, base: Base) -> None:
        host, config, identity = base.host, base.config, base.identity
        self._base = base
        self.shaper = Shaper(caps_of(config), host.now())
        admission = base.credentials.admission(config.invitation)
        report = Mishaps(base.health).add
        self.endpoint = Endpoint(
            host, identity, admission=admission, shaper=self.shaper, report=report
        )
        self.membership = Membership(
            host, self.endpoint, identity, links=config.links, connect=self._connect
        )
        self.dialer = self._new_dialer()
        self.state = self._new_state()
        self.payers = Payers(self.state.views.jobs, self.endpoint.guard)
        self.directory = Listing(host, self.membership, self.state)
        self.courier = Courier(self.endpoint, self._meet, self.dialer.need)
        self.shards = StageSessions(identity.peer)
        """The shards that this node serves, and their sessions. Their speed is published."""
        self.discovery = Discovery(
            host, self.dialer, self.directory, base.health, config.folder,
            speed=self._speed,
        )  # fmt: skip
        self.listening = Listening(
            host, config, self.endpoint, self.dialer, self.directory, base.say
        )
        self.diagnosis = Diagnosis(
            self.dialer, config.listen, host.interfaces, port_443=bool(config.port_443)
        )
        self.remembering = Remembering(
            host, config.folder, self.endpoint, self.directory, base.health
        )

    def _new_dialer(self) -> Dialer:
        config = self._base.config
        return Dialer(
            self._base.host,
            self.endpoint,
            strategies=replace(config.strategies, web_port=config.port_443 is None),
            relaying=relaying_of(config),
            key=self._base.identity.seed,
            book=self._where,
        )

    def _new_state(self) -> State:
        base = self._base
        return State(
            base.host,
            self.endpoint,
            base.identity,
            StateSettings(
                base.config.folder.state,
                keeps=None if keeps_all(base.host, base.config) else (),
                hold=0.0 if base.new else WRITE_HOLD,
            ),
            trouble=self._state_trouble,
        )

    async def _connect(self, peer: PeerId, addresses: Sequence[Address]) -> Link:
        timeout = defaults.CONNECT_TIMEOUT
        return await self.dialer.connect(peer, addresses, timeout=timeout, needed=False)

    async def _meet(self, peer: PeerId) -> None:
        """Link to a peer that a session needs, if it is a live member. Do nothing if it is not."""
        if peer in self.directory.members():
            addresses = self.directory.where(peer)
            await self.dialer.connect(peer, addresses, timeout=defaults.MEET_TIMEOUT)

    def _speed(self, shard: ShardBody) -> float:
        """Return the decode speed of a shard of this node, in tokens per second."""
        parts = Parts(shard.embedding, shard.start, shard.stop, shard.head)
        return self.shards.speed(shard.root, parts).tokens_per_s

    def _where(self, peer: PeerId) -> Sequence[Address]:
        return self.directory.where(peer) or self.discovery.dht.where(peer)

    def _state_trouble(self, condition: str, error: StateError | None) -> None:
        health = self._base.health
        if error is None:
            health.clear(condition)
        elif isinstance(error, StoreRefused):
            trouble = disk_error(self._base.config.folder, error.error)
            health.report(condition, trouble.message, hint=trouble.hint)
        else:
            health.report(condition, error.message, hint=error.hint)
