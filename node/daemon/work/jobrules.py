"""Rules for jobs: the authors that this node works for, and the peers that help with its own."""

from ....state.group.facts import Role
from ....state.group.group import Group
from ....tasks.jobs.crew import does_jobs
from ....transport.identity import PeerId
from ..base import Base
from ..network import NetworkParts


class JobRules:
    """The rules of one node about jobs, as its settings, its group and its members have them."""

    def __init__(self, base: Base, network: NetworkParts) -> None:
        self._own = base.identity.peer
        self._state, self._directory = network.state, network.directory
        self._wanted = base.config.jobs
        self.offers = base.works
        """Whether the owner lets this node work on other nodes' jobs."""

    def group(self) -> Group | None:
        """Return the private group of this node, or None."""
        upkeep = self._state.upkeep
        return None if upkeep is None else upkeep.group

    @property
    def does_jobs(self) -> bool:
        """Whether this node works on other nodes' jobs when it is idle."""
        return self.offers and not self._is_client()

    def is_ready(self) -> bool:
        """Return whether this node may begin a job now."""
        serves = bool(self._directory.own().shards)
        return (self._wanted is True or serves) and not self._is_client()

    def helpers(self) -> list[PeerId]:
        """Return the live peers that do jobs."""
        members, own = self._state.views.members, self._own
        return [p for p in self._directory.members() if p != own and does_jobs(members, p)]

    def is_alone(self) -> bool:
        """Return whether this node knows no other live member of its swarm."""
        return not self._directory.members().keys() - {self._own}

    def serving(self, root: str) -> frozenset[PeerId]:
        """Return the live peers that serve a part of the model with this root."""
        members = self._directory.members().items()
        return frozenset(p for p, said in members if any(s.root == root for s in said.shards))

    def is_member(self, author: PeerId) -> bool:
        """Return whether jobs of this author are accepted. In a private group, the author must be a
        member that is not revoked."""
        group = self.group()
        return group is None or group.order.role(author) is not None

    def stores_for(self, author: PeerId) -> bool:
        """Return whether this node stores the inputs, outputs and checkpoints of an author."""
        return self.does_jobs and self.is_member(author)

    def _is_client(self) -> bool:
        """Return whether this node is a client of a private group. Members ignore what clients
        publish about jobs."""
        group = self.group()
        return group is not None and group.role is Role.CLIENT
