"""The facts that a node publishes about itself, which are written to its feeds and kept up to date.

A feed may contain facts of earlier runs, some of which arrive from peers only after the start. It
may also be full for a while. Therefore the intended facts are stored here, and `settle` writes them
to the feeds repeatedly.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..errors import FeedFull
from .kinds import KINDS
from .writer import FeedWriter

Value = Mapping[str, object]
Place = tuple[int, str]
"""Part and key of a fact."""


@dataclass(frozen=True, slots=True)
class WrittenFacts:
    """The facts of one kind that this node should have, by (part, key).

    `mine` returns whether a key is one of those that `facts` covers. Facts with such keys that are
    not in `facts` are deleted from the feeds.
    """

    kind: str
    facts: Mapping[Place, Value]
    mine: Callable[[str], bool] = lambda key: True


class OwnFacts:
    """The facts that this node publishes about itself, grouped by kind."""

    def __init__(self) -> None:
        self._said: dict[str, WrittenFacts] = {}

    def say(self, said: WrittenFacts) -> None:
        """Replace all facts of a kind."""
        self._said[said.kind] = said

    def settle(self, writer: FeedWriter) -> FeedFull | None:
        """Pass the facts to the writer, and delete those that are in the feeds but not in `said`.

        If a feed refuses a fact, the others are written all the same. Returns the last such error,
        or None if there was none.
        """
        failed: FeedFull | None = None
        for said in self._said.values():
            for (part, key), value in (*_stale(said, writer), *said.facts.items()):
                try:
                    writer.set(said.kind, part, key, value)
                except FeedFull as error:
                    failed = error
        return failed


def _stale(said: WrittenFacts, writer: FeedWriter) -> Iterator[tuple[Place, None]]:
    for part in KINDS[said.kind].parts:
        for key in writer.keys(said.kind, part):
            if said.mine(key) and (part, key) not in said.facts:
                yield (part, key), None
