"""Binding requests that find out where observers see this node's sockets now. No I/O.

The result of an earlier measurement may be outdated. A NAT forgets a mapping after half a minute
without datagrams, and a NAT that allocates ports sequentially has reached other ports by now.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final, Generic

from ...host.datagrams import Place
from ..reach.stun import TRANSACTION_BYTES, MessageClass, StunMessage, request
from .checks import S, Send

RETRY_S: Final = (0.15, 0.25)  # waits in seconds before the second and the third sending


class ObserverQuestions(Generic[S]):
    """A set of Binding requests, one for each pair (socket, observer) in `questions`.

    A request is sent up to three times, until its reply arrives. `due` is the time at which to call
    `take` next, infinite if there is nothing more to send.
    """

    def __init__(
        self, questions: Sequence[tuple[S, Place]], *, now: float, entropy: Callable[[int], bytes]
    ) -> None:
        self._questions = {entropy(TRANSACTION_BYTES): question for question in questions}
        self._answers: dict[tuple[S, Place], Place] = {}
        self._sent = 0
        self.due = now if questions else inf

    @property
    def done(self) -> bool:
        """Whether every request has a reply or is abandoned."""
        return len(self._answers) == len(self._questions) or self._sent > len(RETRY_S) + 1

    def seen(self, socket: S) -> list[Place]:
        """Return the addresses at which observers see a socket, in the order of the requests.

        Observers that have not replied are left out.
        """
        return [
            self._answers[question]
            for question in self._questions.values()
            if question[0] == socket and question in self._answers
        ]

    def take(self, now: float) -> list[Send[S]]:
        """Return the requests to send now, and count them as sent."""
        if now < self.due:
            return []
        self._sent += 1
        self.due = now + (*RETRY_S, RETRY_S[-1])[self._sent - 1] if not self.done else inf
        return [
            Send(socket, request(transaction), observer)
            for transaction, (socket, observer) in self._questions.items()
            if (socket, observer) not in self._answers and self._sent <= len(RETRY_S) + 1
        ]

    def receive(self, message: StunMessage, source: Place, socket: S) -> bool:
        """Process a STUN message. Return False if it does not reply to one of these requests.

        The reply counts only if it came from the observer that was asked, to the asking socket.
        """
        question = self._questions.get(message.transaction)
        if question is None or message.kind is not MessageClass.SUCCESS:
            return False
        if question == (socket, source) and message.mapped is not None:
            self._answers.setdefault(question, message.mapped)
        return True
