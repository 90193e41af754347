"""Log of a running node: peers that join and leave, and the answers that the node has given."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from ....state.directory import Directory
from ....state.views.usage import UsageCount
from ....tasks.inference.gateway import Gateway
from ....tasks.inference.stage import Stage
from ....transport import shortid
from ....transport.identity import PeerId
from ...defaults import JOURNAL_NAMED, JOURNAL_PAUSE
from ..base import Say


@dataclass(frozen=True, slots=True)
class JournalFigures:
    """The members that a node knows and its counters at one moment. Log lines report how they
    differ from those of an earlier moment."""

    peers: frozenset[PeerId] = frozenset()
    """Live members, without this node."""
    answers: int = 0
    """Number of prompts that this node has answered as a gateway since its start. The answers have
    `tokens` tokens in total."""
    tokens: int = 0
    served: UsageCount = field(default_factory=UsageCount)
    """Work done for other nodes since the start."""


class Journal:
    """Produces log lines about changes. Performs no I/O.

    Each call produces at most four lines of bounded length, however many peers join or leave.
    """

    def __init__(self) -> None:
        self._before = JournalFigures()

    def lines(self, now: JournalFigures) -> list[str]:
        """Return lines about what has changed since the last call."""
        before, self._before = self._before, now
        found = []
        if joined := now.peers - before.peers:
            found.append(f"joined: {_named(joined)}; {_others(now.peers)}")
        if lost := before.peers - now.peers:
            found.append(f"lost: {_named(lost)}; {_others(now.peers)}")
        if now.answers != before.answers:
            tokens = now.tokens - before.tokens
            found.append(f"answered {_many(now.answers - before.answers, 'prompt', tokens)}")
        served = now.served - before.served
        if served.requests or served.tokens_out:
            found.append(f"served {_many(served.requests, 'session', served.tokens_out)} to others")
        return found


def _named(peers: frozenset[PeerId]) -> str:
    names = [shortid.short(peer) for peer in sorted(peers)]
    return ", ".join(names[:JOURNAL_NAMED]) + _more(names[JOURNAL_NAMED:])


def _more(names: Sequence[str]) -> str:
    return f" and {len(names)} more" if names else ""


def _others(peers: frozenset[PeerId]) -> str:
    return "1 other node now" if len(peers) == 1 else f"{len(peers)} other nodes now"


def _many(count: int, thing: str, tokens: int) -> str:
    return f"{_counted(count, thing)}, {_counted(tokens, 'token')}"


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


async def keep_journal(say: Say, directory: Directory, gateway: Gateway, stage: Stage) -> None:
    """Pass log lines about changes to `say`, until cancelled."""
    journal = Journal()
    while True:
        peers = frozenset(directory.members()) - {directory.own().peer}
        now = JournalFigures(peers, gateway.answers, gateway.answer_tokens, stage.meter.total)
        for line in journal.lines(now):
            say(line)
        await trio.sleep(JOURNAL_PAUSE)
