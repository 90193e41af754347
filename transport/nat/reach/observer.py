"""Replies to STUN Binding requests, which tell peers the address at which this node sees them.

An attacker can forge the source of a request, so the replies must not amplify an attack. A reply is
never larger than its request. It goes to the request's source, and contains only that address. The
rate of replies is limited, per source network and in total.
"""

from ...host.datagrams import Place
from ...limits import SourceRates
from ...rates import Rate
from . import defaults, stun
from .stun import Kind, Message


class Responder:
    """Rate-limited responder to Binding requests. Counts `answered` and `refused` requests."""

    def __init__(self, rates: SourceRates | None = None) -> None:
        self.answered = 0
        self.refused = 0
        if rates is None:
            each = Rate(defaults.ANSWER_BURST, defaults.ANSWERS_PER_S)
            rates = SourceRates(each, Rate(defaults.ALL_ANSWERS_BURST, defaults.ALL_ANSWERS_PER_S))
        self._rates = rates

    def answer(self, data: bytes, message: Message, source: Place, now: float) -> bytes | None:
        """Return the reply to `message`, which was decoded from the datagram `data`.

        Returns None if no reply is due, or if a limit forbids it. Requests with a user name or an
        integrity attribute get no reply here: they are connectivity checks of hole punching
        (RFC 8445), which uses the same port.
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
        """Return whether a request can be answered: it is large enough and its port is not 0.

        This check precedes the rate limiter, so that invalid requests do not use up tokens.
        """
        return len(data) >= defaults.SMALLEST_ANSWER_BYTES and source[1] > 0


def _is_larger(answer: bytes, request: bytes) -> bool:
    return len(answer) > len(request)
