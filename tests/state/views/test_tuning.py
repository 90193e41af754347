"""Facts of runs of training: typed, bounded, by run and author."""

from collections.abc import Callable
from typing import Any

import pytest

from shoal.state.feeds.entry import FeedName
from shoal.state.views.tuning import (
    TUNING,
    EntryFact,
    HereFact,
    OfferFact,
    StateFact,
    StepFact,
    TuningFacts,
    offer_fact,
    state_fact,
    step_fact,
)
from shoal.transport.identity import Identity

RUN = "ab" * 32
ME = Identity.from_seed(b"\1" * 32)
NAME = FeedName(ME.peer, TUNING, 0)
OFFER = OfferFact(3, "11" * 32, "22" * 32, 500)
STEP = StepFact(3, "11" * 32, (EntryFact(ME.public_key, "22" * 32, 500, refused=True),))
STATE = StateFact("11" * 32, "33" * 32)


def test_facts_come_back() -> None:
    view = TuningFacts()
    watch = view.watch()
    view.changed(NAME, f"{RUN}/here", {})
    view.changed(NAME, f"{RUN}/offer", offer_fact(OFFER))
    view.changed(NAME, f"{RUN}/state", state_fact(STATE))
    view.changed(NAME, f"{RUN}/3/0", step_fact(STEP))
    expected = {"here": HereFact(), "offer": OFFER, "state": STATE, "3/0": STEP}
    assert view.get((RUN, ME.peer)) == expected
    assert view.authors(RUN) == (ME.peer,)
    change = watch.next_now()
    assert change is not None and change.subject == (RUN, ME.peer)
    view.forgotten(NAME)
    assert view.get((RUN, ME.peer)) is None and view.authors(RUN) == ()


BAD: dict[str, Callable[[dict[str, Any]], object]] = {
    "no base": lambda fact: fact.pop("base"),
    "a short base": lambda fact: fact.update(base=b"x" * 31),
    "a base in text": lambda fact: fact.update(base="11" * 32),
    "a round in text": lambda fact: fact.update(round="3"),
    "entries that are no list": lambda fact: fact.update(entries={}),
    "65 entries": lambda fact: fact.update(entries=fact["entries"] * 65),
    "an entry that is too short": lambda fact: fact["entries"][0].pop(),
    "an entry that is no list": lambda fact: fact.update(entries=[3]),
    "a verdict that is no bool": lambda fact: fact["entries"][0].__setitem__(3, 1),
    "a short key": lambda fact: fact["entries"][0].__setitem__(0, b"x"),
    "a short root": lambda fact: fact["entries"][0].__setitem__(1, b"x"),
    "tokens in text": lambda fact: fact["entries"][0].__setitem__(2, "1"),
}


@pytest.mark.parametrize("how", BAD)
def test_malformed_facts_count_as_absent(how: str) -> None:
    view, fact = TuningFacts(), step_fact(STEP)
    BAD[how](fact)
    view.changed(NAME, f"{RUN}/3/0", fact)
    assert view.bad == 1 and view.get((RUN, ME.peer)) is None


@pytest.mark.parametrize("field", ["step", "root"])
@pytest.mark.parametrize("value", [None, "11" * 32, b"x" * 31])
def test_malformed_states_count_as_absent(field: str, value: object) -> None:
    view = TuningFacts()
    view.changed(NAME, f"{RUN}/state", {**state_fact(STATE), field: value})
    assert view.bad == 1 and view.get((RUN, ME.peer)) is None


@pytest.mark.parametrize("key", [RUN, "x/here", f"{RUN}/there", f"{RUN}/123/0", f"{RUN}/1/10", "/"])
def test_other_keys_are_skipped(key: str) -> None:
    view = TuningFacts()
    view.changed(NAME, key, step_fact(STEP))
    assert view.bad == 1
