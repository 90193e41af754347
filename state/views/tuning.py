"""View of runs in which members average what they train: offers, and signatures on steps.

A key is the run's id, and then `here`, `offer`, `state`, or the place of a signature, such as
`3/0`. docs/spec/averaging.md defines the facts. The view only checks types and bounds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...transport.identity import PeerId
from .. import defaults
from ..errors import BadFact
from ..feeds.entry import FeedName
from .fields import read_bytes, read_each, read_root, read_whole
from .view import View

TUNING: Final = "tuning"
"""The kind of feeds with these facts."""
_PLACE = re.compile(r"[0-9]{1,2}/[0-9]\Z")
_KEY_BYTES = 32


class HereFact(NamedTuple):
    """The author takes part in the run."""


class OfferFact(NamedTuple):
    """The author has an update on a state. Roots and steps are 64 hex digits."""

    round: int
    base: str
    root: str
    tokens: int


class StateFact(NamedTuple):
    """The author trains from the state with this root, which it computed or fetched after a step.
    Both are 64 hex digits."""

    step: str
    root: str


class EntryFact(NamedTuple):
    """One update in a signed step: the public key of its author, its root, its tokens, and whether
    it was refused."""

    key: bytes
    root: str
    tokens: int
    refused: bool


@dataclass(frozen=True, slots=True)
class StepFact:
    """The author signs a step."""

    round: int
    base: str
    entries: tuple[EntryFact, ...]


TuningFact = HereFact | OfferFact | StateFact | StepFact
Subject = tuple[str, PeerId]
"""A run and an author."""


class TuningFacts(View[Subject, TuningFact, Mapping[str, TuningFact]]):
    """Facts of all authors about each run. Their keys are what follows the run's id in the keys of
    the feed."""

    kinds = (TUNING,)

    def __init__(self) -> None:
        super().__init__()
        self._runs: dict[str, dict[PeerId, dict[str, TuningFact]]] = {}

    def get(self, subject: Subject) -> Mapping[str, TuningFact] | None:
        """Return an author's facts about a run, or None if there are none."""
        run, author = subject
        return self._runs.get(run, {}).get(author)

    def authors(self, run: str) -> tuple[PeerId, ...]:
        """Return the authors that say anything about a run."""
        return tuple(self._runs.get(run, ()))

    def _read(self, name: FeedName, key: str, value: Mapping[str, object]) -> TuningFact:
        _, what = _split(key)
        if what == "here":
            return HereFact()
        if what == "state":
            return StateFact(_hex(value.get("step")), _hex(value.get("root")))
        number = read_whole(value.get("round"), defaults.MAX_COUNT, 1)
        base = _hex(value.get("base"))
        if what == "offer":
            tokens = read_whole(value.get("tokens"), defaults.MAX_COUNT, 1)
            return OfferFact(number, base, _hex(value.get("root")), tokens)
        entries = read_each(value.get("entries"), defaults.TUNING_ENTRIES, _entry)
        return StepFact(number, base, entries)

    def _replace(
        self, name: FeedName, key: str, old: TuningFact | None, new: TuningFact | None
    ) -> None:
        run, what = _split(key)
        authors = self._runs.setdefault(run, {})
        facts = authors.setdefault(name.author, {})
        if new is None:
            facts.pop(what, None)
        else:
            facts[what] = new
        if not facts:
            del authors[name.author]
        if not authors:
            del self._runs[run]
        self._tell((run, name.author))


def offer_fact(offer: OfferFact) -> dict[str, object]:
    """Return the value of the fact with an offer."""
    return {
        "round": offer.round,
        "base": bytes.fromhex(offer.base),
        "root": bytes.fromhex(offer.root),
        "tokens": offer.tokens,
    }


def step_fact(step: StepFact) -> dict[str, object]:
    """Return the value of the fact with a signature."""
    return {
        "round": step.round,
        "base": bytes.fromhex(step.base),
        "entries": [
            [entry.key, bytes.fromhex(entry.root), entry.tokens, entry.refused]
            for entry in step.entries
        ],
    }


def state_fact(state: StateFact) -> dict[str, object]:
    """Return the value of the fact with the root of a state."""
    return {"step": bytes.fromhex(state.step), "root": bytes.fromhex(state.root)}


def _split(key: str) -> tuple[str, str]:
    run, _, what = key.partition("/")
    if what not in ("here", "offer", "state") and not _PLACE.match(what):
        raise BadFact("a fact about a run has an unknown key")
    return read_root(run), what


def _hex(value: object) -> str:
    digest = read_bytes(value, _KEY_BYTES)
    if len(digest) != _KEY_BYTES:
        raise BadFact("expected a hash of 32 bytes in a fact")
    return digest.hex()


def _entry(value: object) -> EntryFact:
    if type(value) is not list or len(value) < 4 or type(value[3]) is not bool:
        raise BadFact("expected an update of a step in a fact")
    key = bytes.fromhex(_hex(value[0]))
    return EntryFact(key, _hex(value[1]), read_whole(value[2], defaults.MAX_COUNT, 1), value[3])
