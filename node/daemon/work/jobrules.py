"""Whose jobs this node does, which peers help with its own, and who is charged for the work."""

from ....state.group.facts import Role
from ....state.group.group import Group
from ....tasks.jobs.crew import does_jobs
from ....tasks.usage.metering import Use
from ....transport.identity import PeerId
from ..base import Base
from ..network import NetworkParts


class JobRules:
    """The rules of one node about jobs, as its settings, its group and its members have them."""

    def __init__(self, base: Base, network: NetworkParts) -> None:
        self._own = base.identity.peer
        self._state, self._directory = network.state, network.directory
        self._guard = network.endpoint.guard
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

    def serving(self, root: str) -> frozenset[PeerId]:
        """Return the live peers that serve a part of the model with this root."""
        members = self._directory.members().items()
        return frozenset(p for p, said in members if any(s.root == root for s in said.shards))

    def payer(self, use: Use) -> PeerId | None:
        """Return the peer for which a piece of work is counted as usage.

        This is the gateway itself or, if the gateway says that it works on a job, the author of
        that job. The gateway must have claimed the job; otherwise it could name any job. Returns
        None if the job or the claim is not known on this node.
        """
        if not use.job:
            return use.gateway
        jobs = self._state.views.jobs
        author: PeerId | None = None
        with self._guard.around(use.gateway):
            standing = jobs.get(use.job)
            if standing is not None and standing.job is not None:
                author = standing.job.author if jobs.claim_by(use.gateway, use.job) else None
        return author

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
