"""Observation of where peers see a socket now, by a few Binding requests. No I/O.

A measurement of some minutes ago may be outdated: a NAT forgets a mapping after half a minute of
silence, and a counting NAT has moved on.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final, Generic

from ...host.datagrams import Place
from ..reach.stun import TRANSACTION_BYTES, Kind, Message, request
from .checks import S, Send

RETRY_S: Final = (0.15, 0.25)


class Asking(Generic[S]):
    """A set of questions: each (socket, observer) is asked once, and up to twice more."""

    def __init__(
        self, questions: Sequence[tuple[S, Place]], *, now: float, entropy: Callable[[int], bytes]
    ) -> None:
        self._questions = {entropy(TRANSACTION_BYTES): question for question in questions}
        self._answers: dict[tuple[S, Place], Place] = {}
        self._sent = 0
        self.due = now if questions else inf

    @property
    def done(self) -> bool:
        """Whether every question is answered or abandoned."""
        return len(self._answers) == len(self._questions) or self._sent > len(RETRY_S) + 1

    def seen(self, socket: S) -> list[Place]:
        """Return where the observers see a socket, in the order in which they were asked."""
        return [
            self._answers[question]
            for question in self._questions.values()
            if question[0] == socket and question in self._answers
        ]

    def take(self, now: float) -> list[Send[S]]:
        """Return the requests to send now."""
        if now < self.due:
            return []
        self._sent += 1
        self.due = now + (*RETRY_S, RETRY_S[-1])[self._sent - 1] if not self.done else inf
        return [
            Send(socket, request(transaction), observer)
            for transaction, (socket, observer) in self._questions.items()
            if (socket, observer) not in self._answers and self._sent <= len(RETRY_S) + 1
        ]

    def receive(self, message: Message, source: Place, socket: S) -> bool:
        """Take a STUN reply. Return False if it belongs to no question of ours. A reply counts only
        from the observer that was asked."""
        question = self._questions.get(message.transaction)
        if question is None or message.kind is not Kind.SUCCESS:
            return False
        if question == (socket, source) and message.mapped is not None:
            self._answers.setdefault(question, message.mapped)
        return True
