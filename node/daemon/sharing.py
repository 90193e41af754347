"""The parts of a daemon that share models of other engines, and use those of other members."""

from collections.abc import Sequence

import trio

from ...state.membership.record import SharedModel
from ...tasks.inference.gateway import Gateway
from ...tasks.sharing.answering import Answering
from ...tasks.sharing.asking import Asking
from ...tasks.sharing.desk import SharingDesk
from ...tasks.sharing.errors import ShareError
from ...tasks.sharing.line import PeerStanding
from ...tasks.sharing.offers import SharedOffer
from ...tasks.sharing.sharing import Sharing
from ...tasks.usage.metering import UsageMeter
from ...transport.identity import PeerId
from .base import Base
from .content import ContentParts
from .network import NetworkParts

_CONDITION = "shares"


class SharingParts:
    """The parts of one daemon for models without a root."""

    def __init__(
        self,
        base: Base,
        network: NetworkParts,
        content: ContentParts,
        meter: UsageMeter,
        gateway: Gateway,
    ) -> None:
        host, directory, endpoint = base.host, network.directory, network.endpoint
        self._base = base
        self._directory = directory
        self.sharing = Sharing(
            host,
            base.config.folder.shares,
            self._publish,
            guard=endpoint.guard,
            trouble=self._trouble,
        )
        self.desk = SharingDesk(host, endpoint, self.sharing, meter, self._standing)
        self.asking = Asking(host, endpoint, network.courier, self.desk)
        self.answering = Answering(directory, content.names, gateway.generate, self.asking)

    @property
    def running(self) -> int:
        """Number of requests in progress, of this node and at its own engines."""
        return self.sharing.running + self.asking.running

    @property
    def audience(self) -> str:
        """The nodes that may ask for this node's shared models, in words."""
        private = self._base.credentials.private
        return "members of the private group" if private else "every node of the open swarm"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Share what the owner shared before, until cancelled."""
        await self.sharing.run(task_status=task_status)

    def offers(self) -> Sequence[tuple[str, SharedOffer]]:
        """Return all shared models that live members offer, each with the name that means it."""
        return self.answering.all()

    def called(self, name: str) -> str:
        """Return the name by which other nodes ask for a model that this node shares."""
        return self.answering.called(SharedOffer(self._base.identity.peer, SharedModel(name, "")))

    def _publish(self, models: tuple[SharedModel, ...]) -> None:
        self._directory.publish(shared=models)

    def _trouble(self, error: ShareError | None) -> None:
        if error is None:
            self._base.health.clear(_CONDITION)
        else:
            self._base.health.report(_CONDITION, error.message, hint=error.hint)

    def _standing(self, peer: PeerId) -> PeerStanding:
        return PeerStanding.MEMBER if peer in self._directory.members() else PeerStanding.STRANGER
