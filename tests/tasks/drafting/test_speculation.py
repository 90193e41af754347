"""Windows that a gateway sends."""

import pytest

from shoal.tasks.costs.chain import WindowPrices
from shoal.tasks.drafting.defaults import AHEAD, FLIGHT
from shoal.tasks.drafting.modelguesses import ModelGuesses
from shoal.tasks.drafting.sessions import Drafting
from shoal.tasks.drafting.speculation import DraftCounts, Speculation, Window

LINE = list(range(100, 140))
PRICES = WindowPrices(0.2, 0.002, 0.02)


async def speculation(
    drafting: Drafting, *, stages: int = 4, limit: int = 10**6, user: str = "alice"
) -> Speculation:
    """Return the drafts of a session whose prompt ends where a line begins that occurred before."""
    found = drafting.begin(user, "model", stages, limit, DraftCounts(), PRICES)
    await found.read([*LINE, 1, 2, *LINE[:4]])
    return found


@pytest.mark.trio
async def test_windows_follow_each_other_and_a_wrong_one_begins_a_branch() -> None:
    """The first window has the last known token too, beside its four guesses."""
    session = await speculation(Drafting(fixed=(4, 2)))
    assert list(session.windows()) == [
        Window(0, 45, (103, 104, 105, 106, 107)),
        Window(0, 50, (108, 109, 110, 111)),
    ]
    for at, token in enumerate((104, 105, 106, 107, 108)):
        session.take(token, 0.0 if at > 1 else 0.1, 1.0 + at)
    assert list(session.windows()) == [Window(0, 54, (112, 113, 114, 115))]
    session.take(7, 0.1, 6.0)
    session.take(LINE[0], 0.1, 7.0)
    (window, *_) = session.windows()
    assert (window.branch, window.start, window.tokens[:2]) == (51, 52, (100, 101))
    assert session.counts.right == 5


@pytest.mark.trio
async def test_no_windows_are_sent_between_tokens_that_come_together() -> None:
    """A wrong guess among them would make the windows void, and the first stage busy."""
    session = await speculation(Drafting(fixed=(4, 2)))
    assert len(list(session.windows())) == 2
    sent = []
    for at, token in enumerate((104, 105, 106, 107, 108)):
        session.take(token, 0.0 if at > 1 else 0.1, 1.0)
        sent.append(len(list(session.windows())))
    assert sent == [0, 0, 0, 0, 1]


@pytest.mark.trio
async def test_windows_that_the_first_stage_has_ignored_are_sent_again() -> None:
    """Tokens of one window come together. If they come one by one, it was not computed."""
    session = await speculation(Drafting(fixed=(4, 2)))
    assert len(list(session.windows())) == 2
    for at, token in enumerate((104, 105, 106)):
        session.take(token, 0.1, 1.0 + at)
    again = list(session.windows())
    assert [(window.branch, window.start) for window in again] == [(0, 48), (0, 53)]
    assert again[0].tokens == (106, 107, 108, 109, 110)


@pytest.mark.trio
async def test_nothing_is_sent_before_the_first_token_or_beyond_the_end() -> None:
    session = await speculation(Drafting())
    assert not list(session.windows())
    session.take(LINE[4], 0.1, 1.0)
    sent = [token for window in session.windows() for token in window.tokens]
    assert sent[:3] == [104, 105, 106]
    session = await speculation(Drafting(fixed=(4, 2)), limit=49)
    assert [window.tokens for window in session.windows()] == [(103, 104, 105)]
    session = await speculation(Drafting(fixed=(4, 2)), limit=53)
    assert [len(window.tokens) for window in session.windows()] == [5, 2], (
        "a shorter one at the end"
    )
    session = await speculation(Drafting(fixed=(4, 2)), limit=47)
    assert not list(session.windows())


@pytest.mark.trio
async def test_what_is_in_flight_is_bounded() -> None:
    session = await speculation(Drafting(fixed=(1, AHEAD)))
    assert len(list(session.windows())) == FLIGHT
    assert not list(session.windows())
    assert session.counts.most == FLIGHT


@pytest.mark.trio
async def test_tokens_that_arrive_while_the_prompt_is_read_are_not_lost() -> None:
    session = Drafting(fixed=(2, 1)).begin("alice", "model", 4, 10**6, DraftCounts(), PRICES)
    session.take(104, 0.1, 1.0)
    assert not list(session.windows())
    await session.read([*LINE, 1, 2, *LINE[:4]])
    assert next(window.tokens for window in session.windows())[0] == 104


@pytest.mark.trio
async def test_a_users_earlier_answers_help_only_that_user() -> None:
    drafting = Drafting(fixed=(4, 1))
    await drafting.end("alice", "model", [50, 51, 52, 53, 54, 55, 56])
    for user, right in (("alice", (52, 53, 54, 55, 56)), ("bob", None)):
        session = drafting.begin(user, "model", 4, 10**6, DraftCounts(), PRICES)
        await session.read([9, 50, 51])
        session.take(52, 0.1, 1.0)
        found = [window.tokens for window in session.windows()]
        assert (found[0] if found else None) == right


@pytest.mark.trio
async def test_a_smaller_model_guesses_where_the_text_says_nothing() -> None:
    said = ModelGuesses([5, 6])
    session = Drafting(fixed=(4, 1)).begin("", "model", 4, 10**6, DraftCounts(), PRICES, said)
    await session.read([5, 6])
    session.take(7, 0.1, 1.0)
    assert list(session.windows()) == []
    assert said.begin(lambda: None) == [5, 6, 7]
    assert said.add(8) and said.add(9)
    (window,) = session.windows()
    assert window == Window(0, 2, (7, 8, 9))
    session.take(8, 0.1, 2.0)
    session.take(1, 0.1, 3.0)
    assert session.counts.right == 1 and said.behind([], 9) == []


@pytest.mark.trio
@pytest.mark.parametrize(("right", "first"), [(True, 50), (False, 104)])
async def test_the_likelier_guesses_are_computed(right: bool, first: int) -> None:
    """Before anything was verified, a long match is likelier than what a smaller model says."""
    prompt = [*LINE, 1, 2, *LINE[:4]] if not right else [9, 8, 1, 2, 9]
    said = ModelGuesses(prompt)
    session = Drafting(fixed=(4, 1)).begin("", "model", 4, 10**6, DraftCounts(), PRICES, said)
    await session.read(prompt)
    said.begin(lambda: None)
    assert said.add(50)
    (window,) = session.windows()
    assert window.tokens[1] == first
