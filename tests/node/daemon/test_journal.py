"""The log of a running node."""

from dataclasses import replace

from shoal.node.daemon.telling.journal import Journal, JournalFigures
from shoal.state.views.usage import UsageCount
from shoal.transport.identity import Identity
from shoal.transport.shortid import short

PEERS = [Identity.from_seed(bytes([n]) * 32).peer for n in range(1, 10)]


def test_log_lines_for_peers_answers_and_work_for_others() -> None:
    journal = Journal()
    assert journal.lines(JournalFigures()) == []
    some = JournalFigures(frozenset(PEERS[:1]))
    assert journal.lines(some) == [f"joined: {short(PEERS[0])}; 1 other node now"]
    more = JournalFigures(frozenset(PEERS[1:3]), 2, 30, UsageCount(1, 9, 12))
    first, second = map(short, sorted(PEERS[1:3]))
    assert journal.lines(more) == [
        f"joined: {first}, {second}; 2 other nodes now",
        f"lost: {short(PEERS[0])}; 2 other nodes now",
        "answered 2 prompts, 30 tokens",
        "served 1 session, 12 tokens to others",
    ]
    assert journal.lines(more) == []
    assert journal.lines(replace(more, answers=3, tokens=31)) == ["answered 1 prompt, 1 token"]


def test_many_peers_give_one_short_line() -> None:
    journal = Journal()
    (line,) = journal.lines(JournalFigures(frozenset(PEERS)))
    assert line.endswith(" and 6 more; 9 other nodes now") and len(line) < 100
