"""Control socket operations on the node as a whole, such as `status` and `peers`.

Specified in docs/spec/control.md.
"""

from collections.abc import Mapping
from functools import partial

import trio

from ... import __version__
from ...transport.address import Address
from ...transport.errors import TransportError
from ...transport.networks import nearness_at
from .. import defaults
from ..daemon.base import Base
from ..daemon.compute import ComputeParts
from ..daemon.content import ContentParts
from ..daemon.memory import memory_view
from ..daemon.network import NetworkParts
from ..daemon.work.tuning import TuningParts
from ..errors import ControlError
from . import links as linkviews
from . import views
from .diagnosis import finding_view
from .group import group_place, invited_role, may_invite
from .messages.node import GetStatus, Ping, Process, SessionsView, Status, Stop, Stopped
from .messages.reach import (
    Diagnose,
    GetLinks,
    GetPeers,
    InvitationView,
    Invite,
    LinksView,
    Measuring,
    Peers,
    ReachabilityView,
)
from .server import Emit, Operation, operation
from .sharing import offer_views, share_views
from .work.standing import work_view


class Operations:
    """Control socket operations on one node as a whole."""

    def __init__(
        self,
        base: Base,
        network: NetworkParts,
        content: ContentParts,
        compute: ComputeParts,
        tuning: TuningParts,
    ) -> None:
        self._base = base
        self._host = base.host
        self._network = network
        self._content = content
        self._compute = compute
        self._tuning = tuning

    def table(self) -> Mapping[str, Operation]:
        return dict(
            (
                operation(Ping, self.ping),
                operation(GetStatus, self.status),
                operation(GetPeers, self.peers),
                operation(GetLinks, self.links),
                operation(Diagnose, self.doctor),
                operation(Invite, self.invite),
                operation(Stop, self.stop),
            )
        )

    async def ping(self, _ask: Ping, _emit: Emit) -> Process:
        return Process(self._host.pid(), __version__)

    async def stop(self, _ask: Stop, _emit: Emit) -> Stopped:
        self._base.stopped.set()
        return Stopped(self._host.pid())

    async def status(self, _ask: GetStatus, _emit: Emit) -> Status:
        base, network, compute = self._base, self._network, self._compute
        members, own = network.directory.members(), network.directory.own()
        names = views.known_models(members)
        serving = partial(views.serving_view, own.shards, names, compute.stage)
        library, quota = base.library, self._content.quota
        conditions = [*base.health.conditions(), *network.diagnosis.conditions()]
        return Status(
            peer=own.peer,
            version=__version__,
            data=str(base.config.data),
            pid=self._host.pid(),
            uptime_s=self._host.now() - base.began,
            addresses=own.addresses,
            private=base.credentials.private,
            group=group_place(network.state.upkeep),
            reach=finding_view(network.diagnosis.verdict()),
            relays=linkviews.relay_views(network.dialer, self._host.now()),
            relaying=linkviews.relaying_view(network.dialer),
            peers=len(members) - 1,
            serving=serving(compute.serving.status()),
            beside=tuple(map(serving, compute.serving.beside())),
            models=tuple(views.swarm_models(network.directory, library)),
            capacity=views.capacity_view(own.capacity),
            machine=views.machine_view(base.hardware),
            memory=memory_view(base, compute.models, compute.serving.loaded_bytes),
            disk=views.disk_view(quota.allowance, library.store.used_bytes),
            sessions=SessionsView(compute.stage.sessions, compute.gateway.sessions),
            stalls=views.stall_view(base.stalls),
            health=tuple(map(views.condition_view, conditions)),
            shares=share_views(compute.sharing, compute.sharing.sharing.all()),
            audience=compute.sharing.audience,
            shared=offer_views(compute.sharing, own.peer),
            answers=views.answers_view(compute.gateway.choice.errors),
            work=await work_view(
                own.peer,
                network.state.views.jobs,
                compute.working,
                self._tuning,
                compute.tuning_stage.tunings,
            ),
        )

    async def peers(self, _ask: GetPeers, _emit: Emit) -> Peers:
        network, now = self._network, self._host.now()
        members = network.directory.members()
        names, errors = views.known_models(members), self._compute.gateway.choice.errors.peers
        shown = []
        for number, (peer, record) in enumerate(sorted(members.items()), 1):
            if peer != self._base.identity.peer:
                link = network.endpoint.link(peer)
                shown.append(views.peer_view(record, link, names, now, errors.error(peer)))
            if number % defaults.CONTROL_STEP == 0:
                await trio.lowlevel.checkpoint()
        return Peers(tuple(shown), may_invite(network.state.upkeep))

    async def links(self, _ask: GetLinks, _emit: Emit) -> LinksView:
        """Describe every link. Its rates come from two samples of the byte counts, RATE_SPAN
        seconds apart."""
        network, began = self._network, self._host.now()
        before = linkviews.look(network.endpoint.links())
        await trio.sleep(defaults.RATE_SPAN)
        now = self._host.now()
        shown = tuple(
            linkviews.link_view(link, network.dialer, before, now - began, now)
            for link in sorted(network.endpoint.links(), key=lambda link: link.peer)
        )
        return LinksView(shown, now - began)

    async def doctor(self, ask: Diagnose, emit: Emit) -> ReachabilityView:
        """Return how peers reach this node.

        A measurement is made first if there is none yet, or if the request asks for a new one.
        """
        network, reach = self._network, self._network.dialer.reach
        if ask.again or reach.reachability.measured_at is None:
            await self._measure(emit, again=ask.again)
        measured, sharing = reach.reachability.measured_at, self._compute.sharing
        return ReachabilityView(
            peer=self._base.identity.peer,
            port=network.endpoint.port,
            verdict=finding_view(network.diagnosis.verdict()),
            findings=tuple(map(finding_view, network.diagnosis.findings())),
            measured_s=None if measured is None else self._host.now() - measured,
            observers=reach.reachability.observers,
            links=len(network.endpoint.links()),
            machine=views.machine_view(self._base.hardware),
            shares=share_views(sharing, sharing.sharing.all()),
            audience=sharing.audience,
        )

    async def _measure(self, emit: Emit, *, again: bool) -> None:
        """Wait at most MEASURING seconds for a measurement.

        Returns at once if no other computer can reach this node, and after ALONE seconds of uptime
        if no node is linked. With `again`, a new measurement is started.
        """
        network, reach = self._network, self._network.dialer.reach
        if network.diagnosis.local:
            return
        with trio.move_on_after(defaults.MEASURING):
            while not network.endpoint.links():  # the node may just have started
                if self._host.now() - self._base.began > defaults.ALONE:
                    return
                await trio.sleep(defaults.WATCH)
            await emit(Measuring())
            if again:
                await reach.measure()
            while reach.version == 0 or reach.measuring:
                with trio.move_on_after(defaults.WATCH):
                    await reach.changed(reach.version)

    async def invite(self, ask: Invite, _emit: Emit) -> InvitationView:
        base = self._base
        address = _parse_address(ask.address) if ask.address else self._best_address()
        role = invited_role(self._network.state.upkeep, ask.role, private=base.credentials.private)
        try:
            code, expires = await base.credentials.invite(
                base.identity.public_key, address.host, address.port, ask.uses, role
            )
        except ValueError:
            raise ControlError(
                "bad-request",
                f"`{address.host}` is not an IP address, and a code cannot hold a name",
                hint="`shoal invite --address 192.0.2.7:4001`",
            ) from None
        return InvitationView(
            code=code,
            expires=expires,
            uses=ask.uses,
            role=role.word if base.credentials.private else None,
            address=f"{address.host}:{address.port}",
            near=nearness_at(address.host).name.lower(),
        )

    def _best_address(self) -> Address:
        if not self._network.listening.addresses:
            raise ControlError(
                "bad-request",
                "this machine has no address that other machines could reach",
                hint="give one: `shoal invite --address 192.0.2.7:4001`",
            )
        return self._network.listening.addresses[0]


def _parse_address(text: str) -> Address:
    try:
        return Address.parse(text)
    except TransportError as error:
        raise ControlError("bad-request", error.message, hint=error.hint) from None
