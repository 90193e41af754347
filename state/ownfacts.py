"""What a node says of itself in its feeds, kept true there.

A feed holds what earlier runs said, also what only comes back from peers after a start; it may have
no room for a while. So what is to be said is held here, and `settle` makes the feeds say it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import FeedFull
from .kinds import KINDS
from .writer import Writer

Value = Mapping[str, Any]
Place = tuple[int, str]
"""Part and key of a fact."""


@dataclass(frozen=True, slots=True)
class Said:
    """All facts of one kind whose keys are `mine`, by part and key."""

    kind: str
    facts: Mapping[Place, Value]
    mine: Callable[[str], bool] = lambda key: True


class OwnFacts:
    """Of one node: for each thing said, what was said last."""

    def __init__(self) -> None:
        self._said: dict[str, Said] = {}

    def say(self, said: Said) -> None:
        """These facts of a kind from now on, and no others."""
        self._said[said.kind] = said

    def settle(self, writer: Writer) -> FeedFull | None:
        """Let the feeds say so. What takes nothing keeps nothing else from being said; the last
        such error is returned."""
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
