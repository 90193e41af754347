"""A libp2p connection from its first byte on, without I/O: Noise, and yamux inside.

multistream negotiates `/noise` unencrypted, and then `/yamux/1.0.0` under Noise. The dialling side
proposes. Plaintext, secio and TLS are neither offered nor accepted.
"""

from collections.abc import Callable
from typing import Final

from ..identity import Identity
from ..lane.frame import Fault
from . import defaults
from .limits import Libp2pLimits
from .multistream import ProtocolChoice, ProtocolOffer
from .noise import Noise
from .yamux import Event, Yamux

NOISE: Final = "/noise"
YAMUX: Final = "/yamux/1.0.0"


class Libp2pSession:
    """State of a libp2p connection. Pass what arrives to `receive`, and send what `outgoing`
    returns.

    After `receive` has raised Fault, discard the session. `expect` is the peer id that the other
    end must have; None accepts any.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        dialled: bool,
        entropy: Callable[[int], bytes],
        limits: Libp2pLimits,
        expect: str | None = None,
    ) -> None:
        self.yamux = Yamux(dialled=dialled, streams=limits.streams, held=limits.held_bytes)
        """The channels of this connection."""
        self.limits = limits
        self.established = False
        """Whether the peer is authenticated and yamux agreed on."""
        self._noise = Noise(identity, initiator=dialled, entropy=entropy, expect=expect)
        self._security: ProtocolChoice | ProtocolOffer = (
            ProtocolOffer(NOISE) if dialled else ProtocolChoice((NOISE,))
        )
        self._muxer: ProtocolChoice | ProtocolOffer = (
            ProtocolOffer(YAMUX) if dialled else ProtocolChoice((YAMUX,))
        )
        self._muxer_asked = False
        self._clear = bytearray()
        if isinstance(self._security, ProtocolOffer):
            self._clear += self._security.opening()

    @property
    def peer(self) -> str:
        """The peer id of the other end. Raises Fault until both ends are authenticated."""
        if self._noise.peer is None or not self.established:
            raise Fault("not-established")
        return self._noise.peer

    def receive(self, data: bytes) -> list[Event]:
        """Process received bytes, and return the events of streams. Raises Fault if they are
        invalid."""
        if self._security.chosen is None:
            self._clear += self._security.receive(data)
            if self._security.chosen is None:
                return []
            data = self._security.rest()
        plaintext = self._noise.receive(data)
        if not self._noise.established:
            return []
        return self._muxed(plaintext)

    def outgoing(self) -> bytes:
        """Return the bytes to send now: handshake messages, and some of the frames of streams."""
        if self._security.chosen is not None:
            if self.established and (frames := self.yamux.outgoing(defaults.READ_BYTES)):
                self._noise.send(frames)
            self._clear += self._noise.outgoing()
        data = bytes(self._clear)
        self._clear.clear()
        return data

    def _muxed(self, plaintext: bytes) -> list[Event]:
        """Process decrypted bytes: first the negotiation of yamux, then its frames."""
        if self.established:
            return self.yamux.receive(plaintext)
        if not self._muxer_asked:
            self._muxer_asked = True
            if isinstance(self._muxer, ProtocolOffer):
                self._noise.send(self._muxer.opening())
        answer = self._muxer.receive(plaintext)
        if answer:
            self._noise.send(answer)
        if self._muxer.chosen is None:
            return []
        self.established = True
        return self.yamux.receive(self._muxer.rest())
