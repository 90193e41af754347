"""The facts that a node states about itself, which are kept up to date in its feeds.

A feed may contain facts of earlier runs, some of which arrive from peers only after the start, and
it may be full for a while. So the intended facts are held here, and `settle` writes them to the
feeds.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..errors import FeedFull
from .kinds import KINDS
from .writer import Writer

Value = Mapping[str, object]
Place = tuple[int, str]
"""Part and key of a fact."""


@dataclass(frozen=True, slots=True)
class Said:
    """All facts of one kind with keys that `mine` accepts, by part and key."""

    kind: str
    facts: Mapping[Place, Value]
    mine: Callable[[str], bool] = lambda key: True


class OwnFacts:
    """The facts that one node states, by kind."""

    def __init__(self) -> None:
        self._said: dict[str, Said] = {}

    def say(self, said: Said) -> None:
        """Set all facts of a kind, in place of earlier ones."""
        self._said[said.kind] = said

    def settle(self, writer: Writer) -> FeedFull | None:
        """Write the facts to the feeds, and remove stale ones.

        A fact that a feed refuses does not stop the others. Returns the last such error, or None.
        """
        failed: FeedFull | None = None
        for said in self._said.values():
            for (part, key), value in (*_stale(said, writer), *said.facts.items()):
                try:
                    writer.set(said.kind, part, key, value)
                except FeedFull as error:
                    failed = error
        return failed


def _stale(said: Said, writer: Writer) -> Iterator[tuple[Place, None]]:
    for part in KINDS[said.kind].parts:
        for key in writer.keys(said.kind, part):
            if said.mine(key) and (part, key) not in said.facts:
                yield (part, key), None
