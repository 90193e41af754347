"""A browser written in Python: posts an offer, comes in over ICE and aiortc, proves itself.

The client's side of docs/spec/browser.md for tests; `web/shoal.js` is the one for people. Each
step can be replaced by a wrong one.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from shoal.transport.browser.bridge import Bridge, Carrier, FarEnd, open_bridge
from shoal.transport.browser.clear import BrowserSession
from shoal.transport.browser.defaults import BrowserLimits
from shoal.transport.browser.gate import BrowserGate, Exposure
from shoal.transport.browser.proof import DIALLER, PROOF_BYTES, Meeting, listener_of, prove
from shoal.transport.browser.visits import read_exactly
from shoal.transport.host.datagrams import Datagrams, Place
from shoal.transport.host.real import RealHost
from shoal.transport.host.seam import Host
from shoal.transport.identity import Identity, peer_id_of
from shoal.transport.nat.reach.stun import MessageClass, StunMessage, decode, encode
from tests.transport.browser.offers import offer_of
from tests.transport.browser.requests import http

LOOPBACK = "127.0.0.1"
NODE = Identity.from_seed(bytes([1]) * 32)
BROWSER = Identity.from_seed(bytes([2]) * 32)


def join_document(fingerprint: bytes, nonce: bytes = b"n" * 32) -> bytes:
    return json.dumps(
        {"v": 1, "offer": offer_of(fingerprint), "nonce": b64encode(nonce).decode()}
    ).encode()


async def exchange(host: Host, port: int, request: bytes) -> tuple[int, bytes]:
    """Send bytes to a gate; the status and the body of its answer, (0, b"") without one."""
    async with await host.connect(LOOPBACK, port) as stream:
        await stream.send_all(request)
        data = b""
        while piece := await stream.receive_some(65536):
            data += piece
    if not data:
        return 0, b""
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body


@dataclass
class Answer:
    """The gate's answer to an offer."""

    ufrag: str
    password: str
    fingerprint: bytes
    place: Place
    nonce: bytes
    key: bytes


def read_answer(body: bytes) -> Answer:
    found = json.loads(body)
    attributes: dict[str, str] = {}
    for line in found["answer"].split("\r\n"):
        key, _, value = line.removeprefix("a=").partition(":")
        attributes.setdefault(key, value)
    words = attributes["candidate"].split(" ")
    return Answer(
        attributes["ice-ufrag"],
        attributes["ice-pwd"],
        bytes.fromhex(attributes["fingerprint"].split(" ")[1].replace(":", "")),
        (words[4], int(words[5])),
        b64decode(found["nonce"]),
        b64decode(found["key"]),
    )


class Visitor:
    """One attempt to come in. `come` returns the session, None where it was not let in."""

    def __init__(self, host: Host, bridge: Bridge, identity: Identity = BROWSER) -> None:
        self.host = host
        self.bridge = bridge
        self.identity = identity
        self.nonce = host.entropy(32)
        self.answer: Answer | None = None
        self.carrier: Carrier | None = None
        self.datagrams: Datagrams | None = None

    async def post(self, port: int) -> Answer:
        request = http(
            "POST",
            "/webrtc",
            f"{LOOPBACK}:{port}",
            join_document(self.bridge.fingerprint, self.nonce),
            Content_Type="application/json",
        )
        status, body = await exchange(self.host, port, request)
        assert status == 200, body
        self.answer = read_answer(body)
        return self.answer

    async def connect(self, nursery: trio.Nursery) -> Carrier:
        """ICE, DTLS, SCTP, up to an open channel."""
        answer = self.answer
        assert answer is not None
        datagrams = self.datagrams = await self.host.datagrams(LOOPBACK, 0)
        carrier = self.carrier = Carrier(
            self.bridge,
            FarEnd(answer.fingerprint, 5000),
            server=False,
            send=lambda data: void(datagrams.send(data, answer.place)),
            settled=lambda: None,
        )
        checked = trio.Event()

        async def receive() -> None:
            try:
                while True:
                    for data, _ in await datagrams.receive():
                        message = decode(data)
                        if message is not None and message.kind == MessageClass.SUCCESS:
                            checked.set()
                        elif message is None:
                            carrier.take(data)
            finally:
                datagrams.close()

        nursery.start_soon(receive)
        check = StunMessage(
            MessageClass.REQUEST,
            self.host.entropy(12),
            username=f"{answer.ufrag}:visi".encode(),
            priority=1,
            use_candidate=True,
            controlling=1,
        )
        datagrams.send(encode(check, answer.password.encode(), sha256=False), answer.place)
        await checked.wait()
        nursery.start_soon(carrier.run)
        await carrier.opened.wait()
        return carrier

    def meeting(self) -> Meeting:
        assert self.answer is not None
        return Meeting(
            self.nonce, self.answer.nonce, self.bridge.fingerprint, self.answer.fingerprint
        )

    def proof(self) -> bytes:
        assert self.answer is not None
        transcript = self.meeting().transcript(self.identity.public_key, self.answer.key)
        return prove(self.identity, DIALLER, transcript)

    async def introduce(self, proof: bytes) -> BrowserSession | None:
        """Send a proof, and read the node's."""
        assert self.carrier is not None and self.answer is not None
        byte_stream = self.carrier.byte_stream
        byte_stream.write_ready(memoryview(proof))
        try:
            theirs = await read_exactly(byte_stream, PROOF_BYTES)
        except OSError:
            return None
        key = self.identity.public_key
        peer = listener_of(theirs, self.meeting(), key)
        if peer is None:
            return None
        assert peer == peer_id_of(self.answer.key)
        return BrowserSession(byte_stream, peer, self.meeting().exporter(key, self.answer.key))

    async def come(self, port: int, nursery: trio.Nursery) -> BrowserSession | None:
        await self.post(port)
        await self.connect(nursery)
        return await self.introduce(self.proof())


def void(_: object) -> None:
    pass


@dataclass
class House:
    """A running gate, the sessions that it delivered, and a bridge for visitors."""

    gate: BrowserGate
    host: Host
    came: list[BrowserSession]
    bridge: Bridge
    nursery: trio.Nursery

    def visitor(self, identity: Identity = BROWSER) -> Visitor:
        return Visitor(self.host, self.bridge, identity)

    @property
    def name(self) -> str:
        return f"{LOOPBACK}:{self.gate.port}"


@asynccontextmanager
async def open_house(
    limits: BrowserLimits | None = None, **options: tuple[str, ...]
) -> AsyncIterator[House]:
    """A gate on loopback until the end of the block."""
    host = RealHost()
    came: list[BrowserSession] = []
    exposure = Exposure(**options)  # type: ignore[arg-type]
    gate = BrowserGate(host, NODE, came.append, exposure=exposure, limits=limits)
    async with trio.open_nursery() as nursery:
        await nursery.start(gate.run, LOOPBACK, 0)
        async with open_bridge() as bridge, trio.open_nursery() as visitors:
            yield House(gate, host, came, bridge, visitors)
            visitors.cancel_scope.cancel()
        nursery.cancel_scope.cancel()
