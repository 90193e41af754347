"""Browsers that come in over loopback, and those that may not."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import trio
import trio.testing

pytest.importorskip("aiortc", reason="needs `pip install 'shoal[browser]'`")
pytest.importorskip("trio_asyncio", reason="needs `pip install 'shoal[browser]'`")

from shoal.transport.browser.defaults import BrowserLimits
from shoal.transport.browser.gate import GateStatus
from shoal.transport.browser.proof import DIALLER, PROOF_BYTES, prove
from shoal.transport.identity import Identity
from shoal.transport.nat.reach.stun import MessageClass, StunMessage, encode
from tests.transport.browser.visitor import BROWSER, LOOPBACK, NODE, Visitor, open_house
from tests.transport.fleet import clock, until

pytestmark = pytest.mark.trio


@pytest.fixture
def virtual_time() -> trio.testing.MockClock:
    return clock()


MALLORY = Identity.from_seed(bytes([3]) * 32)


async def test_a_browser_comes_in_and_both_ends_know_each_other() -> None:
    async with open_house() as house:
        with trio.fail_after(10):
            session = await house.visitor().come(house.gate.port, house.nursery)
        assert session is not None and session.peer == NODE.peer
        (theirs,) = house.came
        assert theirs.peer == BROWSER.peer
        assert theirs.exporter == session.exporter
        assert theirs.byte_stream.medium == "webrtc" and theirs.byte_stream.remote[0] == LOOPBACK
        assert house.gate.status.browsers == house.gate.status.proven == 1
        session.byte_stream.close()
        await until(lambda: house.gate.status.browsers == 0)


def wrong_key(visitor: Visitor) -> bytes:
    """Return a proof in the browser's name that another key signed."""
    assert visitor.answer is not None
    transcript = visitor.meeting().transcript(BROWSER.public_key, visitor.answer.key)
    forged = bytearray(prove(MALLORY, DIALLER, transcript))
    forged[1:33] = BROWSER.public_key
    return bytes(forged)


def swapped(visitor: Visitor) -> bytes:
    """Return the proof of a man in the middle: the two fingerprints are swapped."""
    assert visitor.answer is not None
    meeting = visitor.meeting()
    turned = replace(
        meeting,
        dialler_fingerprint=b"x" * 32,
        listener_fingerprint=meeting.dialler_fingerprint,
    )
    transcript = turned.transcript(BROWSER.public_key, visitor.answer.key)
    return prove(BROWSER, DIALLER, transcript)


def rubbish(visitor: Visitor) -> bytes:
    return bytes(PROOF_BYTES)


def the_node_s_own(visitor: Visitor) -> bytes:
    assert visitor.answer is not None
    transcript = visitor.meeting().transcript(NODE.public_key, visitor.answer.key)
    return prove(NODE, DIALLER, transcript)


@pytest.mark.parametrize("proof", [wrong_key, swapped, rubbish, the_node_s_own])
async def test_a_wrong_proof_is_refused(proof: Callable[[Visitor], bytes]) -> None:
    async with open_house() as house:
        visitor = house.visitor()
        await visitor.post(house.gate.port)
        with trio.fail_after(10):
            await visitor.connect(house.nursery)
            assert await visitor.introduce(proof(visitor)) is None
        assert not house.came
        await until(lambda: house.gate.status.joining == 0)
        assert house.gate.status.bad_proofs == 1


async def test_a_proof_that_was_overheard_is_worth_nothing_again() -> None:
    async with open_house() as house:
        first = house.visitor()
        with trio.fail_after(10):
            assert await first.come(house.gate.port, house.nursery) is not None
            overheard = first.proof()
            second = house.visitor()
            second.nonce = first.nonce  # and everything else that a browser chooses
            await second.post(house.gate.port)
            await second.connect(house.nursery)
            assert await second.introduce(overheard) is None
        assert len(house.came) == 1


async def test_nothing_is_read_before_the_proof() -> None:
    """A hello in the proof's place ends the channel."""
    async with open_house() as house:
        visitor = house.visitor()
        await visitor.post(house.gate.port)
        with trio.fail_after(10):
            carrier = await visitor.connect(house.nursery)
            carrier.byte_stream.write_ready(memoryview(bytes([0, 0, 0, 1, 1]) * 100))
            await carrier.over.wait()
        assert not house.came and house.gate.status.bad_proofs == 1


async def test_what_comes_right_behind_the_proof_is_kept() -> None:
    async with open_house() as house:
        visitor = house.visitor()
        await visitor.post(house.gate.port)
        with trio.fail_after(10):
            await visitor.connect(house.nursery)
            assert await visitor.introduce(visitor.proof() + b"hello") is not None
            (session,) = house.came
            await session.byte_stream.wait_readable()
        assert session.byte_stream.read_ready(100) == b"hello"


async def test_a_browser_that_never_comes_is_forgotten(
    virtual_time: trio.testing.MockClock,
) -> None:
    async with open_house() as house:
        await house.visitor().post(house.gate.port)
        assert house.gate.status.joining == 1
        await trio.sleep(BrowserLimits().join_s - 1)
        assert house.gate.status.joining == 1
        await trio.sleep(2)
        assert house.gate.status == GateStatus(0, 0, 0, 0, 0, 0)


async def test_one_that_connects_and_says_nothing_is_forgotten_too(
    virtual_time: trio.testing.MockClock,
) -> None:
    async with open_house() as house:
        visitor = house.visitor()
        await visitor.post(house.gate.port)
        with trio.fail_after(20):
            carrier = await visitor.connect(house.nursery)
            await carrier.over.wait()
        await trio.sleep(1)
        assert not house.came and house.gate.status.joining == 0


async def test_checks_of_strangers_get_no_answer() -> None:
    async with open_house() as house:
        visitor = house.visitor()
        answer = await visitor.post(house.gate.port)
        stranger = await house.host.datagrams(LOOPBACK, 0)
        check = StunMessage(
            MessageClass.REQUEST,
            bytes(12),
            username=f"{answer.ufrag}:visi".encode(),
            priority=1,
            use_candidate=True,
        )
        for data in (encode(check, b"guessed", sha256=False), b"", bytes(100), b"\x16" + bytes(60)):
            stranger.send(data, answer.place)
        with trio.move_on_after(0.1) as scope:
            await stranger.receive()
        stranger.close()
        assert scope.cancelled_caught
        with trio.fail_after(10):  # and the one that was meant still comes in
            await visitor.connect(house.nursery)
            assert await visitor.introduce(visitor.proof()) is not None


async def test_the_gate_stops_with_browsers_in_it() -> None:
    async with open_house() as house:
        with trio.fail_after(10):
            session = await house.visitor().come(house.gate.port, house.nursery)
            await house.visitor(MALLORY).post(house.gate.port)
    assert session is not None
    with pytest.raises((OSError, trio.ClosedResourceError)):
        house.came[0].byte_stream.write_ready(memoryview(b"x"))
