"""A volunteer's replies to Binding requests, which tell peers where it sees them.

It must not amplify an attack. A reply is never larger than its request, goes to the address that
the request came from, and contains only that address. Replies are rate-limited by source and in
all.
"""

from ...host.datagrams import Place
from ...rates import Rate, SourceRates
from . import defaults, stun
from .stun import Kind, Message


class Responder:
    """Responder to Binding requests."""

    def __init__(self, rates: SourceRates | None = None) -> None:
        self.answered = 0
        self.refused = 0
        if rates is None:
            each = Rate(defaults.ANSWER_BURST, defaults.ANSWERS_PER_S)
            rates = SourceRates(each, Rate(defaults.ALL_ANSWERS_BURST, defaults.ALL_ANSWERS_PER_S))
        self._rates = rates

    def answer(self, data: bytes, message: Message, source: Place, now: float) -> bytes | None:
        """Return the reply to a datagram that was decoded as `message`, or None.

        Requests with a user name or an integrity attribute are not meant for it: they are checks of
        hole punching (RFC 8445) on the same port.
        """
        if message.kind is not Kind.REQUEST or message.username or message.integrity:
            return None
        if not self._fits(data, source) or not self._rates.take(source[0], now):
            self.refused += 1
            return None
        if message.unknown:
            answer = stun.encode(stun.refuse_unknown(message))
        else:
            success = Message(Kind.SUCCESS, message.transaction, mapped=source)
            answer = stun.encode(success)
        if _is_larger(answer, data):
            self.refused += 1
            return None
        self.answered += 1
        return answer

    def _fits(self, data: bytes, source: Place) -> bool:
        """Whether a request can be answered. Checked first, so that others use up no rate."""
        return len(data) >= defaults.SMALLEST_ANSWER_BYTES and source[1] > 0


def _is_larger(answer: bytes, request: bytes) -> bool:
    return len(answer) > len(request)
