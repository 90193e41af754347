"""Facts of a run in members' feeds, as the values of this package and back. No I/O."""

from collections.abc import Mapping

from ....state.views.tuning import EntryFact, OfferFact, StepFact, offer_fact, step_fact
from ....transport.identity import peer_id_of, public_key_of
from .defaults import SIGNED, WINDOW
from .errors import BadUpdate
from .steps import Offer, PeerUpdate, Step


def offer_of(fact: OfferFact) -> Offer:
    """Return the offer that a fact states."""
    return Offer(fact.round, fact.base, fact.root, fact.tokens)


def step_of_fact(run: str, fact: StepFact) -> Step:
    """Return the step that a fact signs. Raises BadUpdate `bad-step` if it is malformed."""
    try:
        entries = tuple(
            PeerUpdate(peer_id_of(each.key), each.root, each.tokens, each.refused)
            for each in fact.entries
        )
        return Step(run, fact.base, fact.round, entries)
    except ValueError as error:
        raise BadUpdate("bad-step", f"a signed step is malformed: {error}") from None


def fact_of_offer(offer: Offer) -> Mapping[str, object]:
    """Return the value of the fact with an offer."""
    return offer_fact(OfferFact(offer.round, offer.base, offer.root, offer.tokens))


def fact_of_step(step: Step) -> Mapping[str, object]:
    """Return the value of the fact with a signature on a step."""
    entries = tuple(
        EntryFact(public_key_of(each.peer), each.root, each.tokens, each.refused)
        for each in step.entries
    )
    return step_fact(StepFact(step.round, step.base, entries))


def places(step: Step) -> list[str]:
    """Return the keys at which a step may be signed. They are shared with the rounds that are a
    multiple of WINDOW away."""
    return [f"{step.round % WINDOW}/{place}" for place in range(SIGNED)]
