"""The layers joined: in any fragmentation, both roles, nothing but faults on garbage."""

import random

import pytest

from shoal.transport.lane.frame import Fault
from shoal.transport.libp2p import Libp2pLimits
from shoal.transport.libp2p.multistream import line
from shoal.transport.libp2p.session import Libp2pSession
from shoal.transport.libp2p.yamux import ChannelOpened
from tests.transport.libp2p.pipes import OURS, THEIRS


def pair(seed: int = 1, expect: str | None = OURS.peer) -> tuple[Libp2pSession, Libp2pSession]:
    draw = random.Random(seed).randbytes
    limits = Libp2pLimits()
    return (
        Libp2pSession(THEIRS, dialled=True, entropy=draw, limits=limits, expect=expect),
        Libp2pSession(OURS, dialled=False, entropy=draw, limits=limits),
    )


@pytest.mark.parametrize("most", [1, 7, 100, 100_000])
def test_both_ends_get_there(most: int) -> None:
    draw = random.Random(most)
    a, b = pair()
    wires = {a: b"", b: b""}
    while not (a.established and b.established):
        for near, far in ((a, b), (b, a)):
            wires[far] += near.outgoing()
            cut = draw.randrange(1, most + 1)
            far.receive(wires[far][:cut])
            wires[far] = wires[far][cut:]
    assert (a.peer, b.peer) == (OURS.peer, THEIRS.peer)
    assert wires == {a: b"", b: b""}
    a.yamux.open().write(b"hello")
    (event, *_) = b.receive(a.outgoing())
    assert isinstance(event, ChannelOpened) and event.stream.read(10) == b"hello"


@pytest.mark.parametrize("security", ["/plaintext/2.0.0", "/secio/1.0.0", "/tls/1.0.0"])
def test_no_security_but_noise_is_taken(security: str) -> None:
    _, b = pair()
    b.receive(line("/multistream/1.0.0") + line(security))
    assert b.outgoing() == line("/multistream/1.0.0") + line("na")


def test_the_peer_is_unknown_before_the_handshake() -> None:
    a, _ = pair()
    with pytest.raises(Fault):
        assert a.peer


def test_the_wrong_one_is_noticed_by_the_dialler() -> None:
    a, b = pair(expect=THEIRS.peer)
    with pytest.raises(Fault, match="wrong-peer"):
        for _ in range(10):
            b.receive(a.outgoing())
            a.receive(b.outgoing())


def test_a_changed_byte_ends_it() -> None:
    draw = random.Random(2)
    for _ in range(40):
        a, b = pair()
        spoil = draw.randrange(3)
        with pytest.raises(Fault):
            for turn in range(50):
                data = bytearray(a.outgoing())
                if data and turn >= spoil:
                    data[draw.randrange(len(data))] ^= 0x80
                b.receive(bytes(data))
                a.receive(b.outgoing())
                if a.established:
                    a.yamux.ping()
                elif not data and turn > 10:
                    raise Fault("stuck")  # it waits for more bytes, until the handshake times out
