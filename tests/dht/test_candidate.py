"""candidate: who named contacts in vain is in doubt, and gets out of it again."""

from shoal.dht import defaults
from shoal.dht.candidate import Candidate, Step
from tests.dht.nodes import contacts


def candidates(count: int, *by: Candidate) -> list[Candidate]:
    return [Candidate(each, 0, 1, 0, 0, {}, list(by)) for each in contacts(count)]


def ask(one: Candidate, outcome: str = "", answered: float | None = None) -> Candidate:
    one.step = Step(one.contact, one.path, one.hop, 0.0, answered, outcome)
    return one


def test_who_named_ghosts_is_in_doubt_once_for_each() -> None:
    (liar,) = candidates(1)
    ghosts = candidates(5, liar)
    for number, ghost in enumerate(ghosts):
        assert ghosts[-1].doubt == number
        ghost.in_vain()
        ghost.in_vain()  # late, and then it failed: that is one
    assert ghosts[0].doubt == 5
    assert liar.doubt == 0, "it is of the own table"


def test_who_answers_speaks_for_those_who_named_it_and_no_further_than_so_far() -> None:
    (one,) = candidates(1)
    named = candidates(10, one)
    for each in named[:6]:
        each.made_good()
    for each in named[6:]:
        each.in_vain()
    assert named[0].doubt == 4 - defaults.CREDIT


def test_one_that_was_late_and_answers_was_not_named_in_vain() -> None:
    (one,) = candidates(1)
    (late, other) = candidates(2, one)
    late.in_vain()
    assert other.doubt == 1
    late.made_good()
    assert other.doubt == 0 and (one.good, one.bad) == (1, 0)


def test_the_most_credible_of_those_who_named_it_counts() -> None:
    honest, liar = candidates(2)
    liar.bad = 9
    (named,) = candidates(1, liar)
    assert named.doubt == 9
    named.named_by(honest)
    assert named.doubt == 0


def test_naming_one_that_failed_already_is_held_against_the_second_too() -> None:
    first, second = candidates(2)
    (ghost,) = candidates(1, first)
    ghost.in_vain()
    ghost.named_by(second)
    assert ghost.doubt == 1 and second.bad == 1
    ghost.named_by(ghost)
    assert ghost.by == [first, second], "its own word is none"


def test_sure_are_those_that_answered_of_the_own_table_or_named_by_two() -> None:
    first, second = candidates(2)
    assert first.sure
    (one,) = candidates(1, first)
    assert not one.sure
    one.named_by(second)
    assert one.sure
    first.bad = second.bad = 3
    assert not one.sure
    assert ask(one, "nothing", 1.0).sure


def test_dead_are_those_asked_in_vain() -> None:
    (one,) = candidates(1)
    assert not one.dead and not one.older(0.0, 9.0)
    for outcome in ("", "records", "contacts", "nothing"):
        assert not ask(one, outcome).dead
    for outcome in ("failed", "timeout", "bad-signature", "busy"):
        assert ask(one, outcome).dead
    assert one.older(2.0, 2.0) and not one.older(2.0, 1.9)
