"""Questions from the node's own port: repetition, and the required source of replies."""

from collections.abc import Callable

import pytest
import trio

from shoal.transport.host.datagrams import Datagrams, Place
from shoal.transport.host.real import RealHost
from shoal.transport.nat.reach import defaults
from shoal.transport.nat.reach.looking import Looker
from shoal.transport.nat.reach.stun import MessageClass, StunMessage, decode

pytestmark = pytest.mark.trio
FIRST, SECOND = ("11.0.5.1", 1), ("11.0.5.2", 2)
HERE, LIE = ("11.0.0.1", 4001), ("6.6.6.6", 6)


class Port:
    """The node's UDP port. `network` answers what is sent."""

    port = 4001

    def __init__(self) -> None:
        self.sent: list[Place] = []
        self.network: Callable[[StunMessage, Place], None] = lambda message, to: None

    def send(self, data: bytes, to: Place, socket: Datagrams | None = None) -> bool:
        message = decode(data)
        assert message is not None and message.kind is MessageClass.REQUEST
        self.sent.append(to)
        self.network(message, to)
        return True


def success(message: StunMessage, mapped: Place = HERE) -> StunMessage:
    return StunMessage(MessageClass.SUCCESS, message.transaction, mapped=mapped)


async def test_views_of_each_observer(autojump_clock: object) -> None:
    port = Port()
    looker = Looker(RealHost(), port)
    taken: list[bool] = []
    port.network = lambda message, to: taken.append(looker.on_answer(success(message), to))
    assert await looker.look([FIRST, SECOND]) == [HERE, HERE]
    assert port.sent == [FIRST, SECOND] and all(taken)


async def test_a_silent_observer_is_asked_again_and_then_abandoned(autojump_clock: object) -> None:
    port = Port()
    looker = Looker(RealHost(), port)
    began = trio.current_time()
    assert await looker.look([FIRST]) == [None]
    assert port.sent == [FIRST] * len(defaults.RETRY_S)
    assert trio.current_time() - began == pytest.approx(sum(defaults.RETRY_S), abs=0.2)


@pytest.mark.parametrize(("source", "believed"), [(SECOND, None), (FIRST, LIE)])
async def test_only_replies_of_the_observer_itself_count(
    autojump_clock: object, source: Place, believed: Place | None
) -> None:
    port = Port()
    looker = Looker(RealHost(), port)
    taken: list[bool] = []
    port.network = lambda message, to: taken.append(looker.on_answer(success(message, LIE), source))
    assert await looker.look([FIRST]) == [believed]
    assert taken[0] is (believed is not None)


async def test_finished_questions_leave_no_state(autojump_clock: object) -> None:
    port = Port()
    looker = Looker(RealHost(), port)
    asked: list[StunMessage] = []
    port.network = lambda message, to: asked.append(message)
    await looker.look([FIRST])
    assert not looker.on_answer(success(asked[0]), FIRST)
    assert not looker.open_looks
