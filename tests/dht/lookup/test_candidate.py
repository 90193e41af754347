"""candidate: a referrer of dead contacts is doubted, and can regain trust."""

from shoal.dht import defaults
from shoal.dht.lookup.candidate import LookupCandidate, LookupStep
from tests.dht.nodes import contacts


def candidates(count: int, *by: LookupCandidate) -> list[LookupCandidate]:
    return [LookupCandidate(each, 0, 1, 0, 0, {}, list(by)) for each in contacts(count)]


def ask(one: LookupCandidate, outcome: str = "", answered: float | None = None) -> LookupCandidate:
    one.step = LookupStep(one.contact, one.path, one.hop, 0.0, answered, outcome)
    return one


def test_a_referrer_is_doubted_once_for_each_dead_contact() -> None:
    (liar,) = candidates(1)
    ghosts = candidates(5, liar)
    for number, ghost in enumerate(ghosts):
        assert ghosts[-1].doubt == number
        ghost.mark_failed()
        ghost.mark_failed()  # late, then failed: counts once
    assert ghosts[0].doubt == 5
    assert liar.doubt == 0, "it is in the own table"


def test_replies_speak_for_the_referrer_up_to_a_limit() -> None:
    (one,) = candidates(1)
    named = candidates(10, one)
    for each in named[:6]:
        each.mark_answered()
    for each in named[6:]:
        each.mark_failed()
    assert named[0].doubt == 4 - defaults.CREDIT


def test_a_late_reply_clears_the_doubt() -> None:
    (one,) = candidates(1)
    (late, other) = candidates(2, one)
    late.mark_failed()
    assert other.doubt == 1
    late.mark_answered()
    assert other.doubt == 0 and (one.good, one.bad) == (1, 0)


def test_the_best_referrer_counts() -> None:
    honest, liar = candidates(2)
    liar.bad = 9
    (named,) = candidates(1, liar)
    assert named.doubt == 9
    named.add_referrer(honest)
    assert named.doubt == 0


def test_naming_a_contact_that_already_failed_counts_against_the_second_referrer_too() -> None:
    first, second = candidates(2)
    (ghost,) = candidates(1, first)
    ghost.mark_failed()
    ghost.add_referrer(second)
    assert ghost.doubt == 1 and second.bad == 1
    ghost.add_referrer(ghost)
    assert ghost.by == [first, second], "it cannot vouch for itself"


def test_sure_contacts_answered_or_are_in_the_table_or_have_two_referrers() -> None:
    first, second = candidates(2)
    assert first.sure
    (one,) = candidates(1, first)
    assert not one.sure
    one.add_referrer(second)
    assert one.sure
    first.bad = second.bad = 3
    assert not one.sure
    assert ask(one, "nothing", 1.0).sure


def test_contacts_whose_query_failed_are_dead() -> None:
    (one,) = candidates(1)
    assert not one.dead and not one.older(0.0, 9.0)
    for outcome in ("", "records", "contacts", "nothing"):
        assert not ask(one, outcome).dead
    for outcome in ("failed", "timeout", "bad-signature", "busy"):
        assert ask(one, outcome).dead
    assert one.older(2.0, 2.0) and not one.older(2.0, 1.9)
