"""All views of a node."""

from ...transport.identity import PeerId
from ..membership.record import MemberRecord
from .jobs import Jobs
from .members import Member, Members
from .models import ModelNames
from .placements import Placements
from .tuning import TuningFacts
from .usage import Usage
from .view import Shows, ViewSet, show_all

DESCRIBING = frozenset((*Members.kinds, *ModelNames.kinds, *Placements.kinds))
"""Kinds of feeds from which `Views.record` is assembled."""


class Views(ViewSet):
    """All views of a node. `on_change` is called after a change of a member's `record`.

    `shows` returns whether an author's feeds of a kind count.
    """

    def __init__(self, shows: Shows = show_all) -> None:
        self.members = Members()
        self.models = ModelNames()
        self.placements = Placements()
        self.jobs = Jobs()
        self.usage = Usage()
        self.tunings = TuningFacts()
        super().__init__(
            (self.members, self.models, self.placements, self.jobs, self.usage, self.tunings),
            DESCRIBING,
            shows,
        )

    def record(self, peer: PeerId) -> MemberRecord:
        """Return a member's record, assembled from the facts in its feeds.

        The record includes the shards of earlier serving runs. Fields that are not facts have their
        defaults.
        """
        member = self.members.get(peer) or Member(peer)
        return MemberRecord(
            peer=peer,
            seq=0,
            version=member.version,
            capacity=member.capacity,
            models=self.models.of(peer),
            shards=self.placements.of(peer),
            shared=member.shared,
            links=member.links,
        )
