"""The owner's side of requests: answers probes, and has engines answer what peers ask.

A request waits in its engine's line, runs, and is counted as usage of its gateway, also if the
gateway leaves before the end.
"""

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import trio

from ...transport.dial.endpoint import Endpoint
from ...transport.errors import CallRefused, LinkClosed
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.link.calls import Call, Refusal, Reply
from ...transport.link.serving import IncomingStream
from ...transport.link.stream import Stream
from ...transport.message import pack
from ...transport.rates import Rate, Rates
from ..usage.metering import UsageMeter, Use
from . import defaults
from .engine import Emit, Tally
from .errors import BadShare, EngineFailed, ShareError
from .line import PeerStanding, Ticket
from .messages import (
    AnswerEnd,
    FailedAnswer,
    FrameKind,
    ShareAsk,
    ShareBody,
    ShareLoad,
    ShareProbe,
    pack_frame,
    read_header,
    read_payload,
    text_frames,
)
from .sharing import SharedNow, Sharing, not_shared

_USAGE_DOMAIN: Final = b"shoal/share/1\0"
_PIECE: Final = 1 << 16  # bytes of one read; buffered ones are read without giving way to others
_LOST: Final = (CallRefused, LinkClosed)
_ASK_ELSEWHERE: Final = "`shoal model list` shows its sharers"
LEAVE_OUT: Final = "leave that out, or use a model with a root: `shoal model list`"
StandingOf = Callable[[PeerId], PeerStanding]


def usage_root(name: str) -> str:
    """Return the 64 digits under which the use of a shared model is counted.

    They are no root, because they hash the name and not a manifest.
    """
    return hashlib.sha256(_USAGE_DOMAIN + name.encode()).hexdigest()


class SharingDesk:
    """Desk of one node, at which peers and this node itself ask for its shared models."""

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        sharing: Sharing,
        meter: UsageMeter,
        standing: StandingOf,
    ) -> None:
        self._host = host
        self._own = endpoint.peer
        self._sharing = sharing
        self._meter = meter
        self._standing = standing
        self._asks = Rates(Rate(*defaults.ASKS))
        self._probes = Rates(Rate(*defaults.PROBES))
        self._texts = Counter[PeerId]()  # requests whose text is arriving
        endpoint.handle("share.probe", self._on_probe)
        endpoint.handle_stream("share.ask", self._on_ask)

    def load(self, peer: PeerId, name: str) -> ShareLoad:
        """Return how long a request of a peer would wait. Raises ShareError `not-shared`."""
        watch = self._find(name).watch
        line = watch.line
        free = max(0, line.at_once - line.running)
        ahead = line.ahead(peer, self._standing_of(peer))
        return ShareLoad(ahead, free, watch.first_s, watch.answer_s)

    async def answer(self, peer: PeerId, ask: ShareAsk, body: ShareBody, emit: Emit) -> AnswerEnd:
        """Answer a request when its turn has come. `emit` receives the text as it arrives.

        Raises ShareError if the model is not shared, does not take the request, or its engine
        fails.
        """
        now = self._find(ask.model)
        assert now.model is not None
        check(ask, body, frozenset(now.model.dialect.takes))
        tally, first = Tally(ask, body), list[float]()

        async def pass_on(text: str) -> None:
            first.append(self._host.now())
            await emit(text)

        async with self._turn(peer, now) as ticket:
            try:
                engine = now.watch.engine
                figures = await engine.answer(now.model, ask, body, tally, pass_on)
                began, ended = ticket.began, self._host.now()
                now.watch.measure(first[0] - began if first else None, ended - began)
                return figures
            except EngineFailed:
                now.watch.look_now()
                raise
            finally:
                self._count(peer, ask.model, tally, self._host.now() - ticket.began)

    @asynccontextmanager
    async def _turn(self, peer: PeerId, now: SharedNow) -> AsyncIterator[Ticket]:
        """Wait in the engine's line, and hold a place there during the block."""
        line = now.watch.line
        ticket = line.join(peer, self._standing_of(peer), self._host.now())
        try:
            await ticket.called.wait()
            yield ticket
        finally:
            line.leave(ticket, self._host.now())

    def _count(self, peer: PeerId, name: str, tally: Tally, seconds: float) -> None:
        use = Use(peer, usage_root(name))
        self._meter.opened(use)
        self._meter.read(use, tally.prompt_tokens)
        self._meter.made(use, tokens=tally.tokens, seconds=seconds)

    def _find(self, name: str) -> SharedNow:
        if self._sharing.barred is not None:
            raise ShareError("not-shared", self._sharing.barred, hint=_ASK_ELSEWHERE)
        found = self._sharing.find(name)
        if found is None:
            raise not_shared(name, _ASK_ELSEWHERE)
        return found

    def _standing_of(self, peer: PeerId) -> PeerStanding:
        return PeerStanding.OWN if peer == self._own else self._standing(peer)

    # Peers.

    def _on_probe(self, call: Call) -> Reply | Refusal:
        if not self._probes.take(call.peer, self._host.now()):
            return Refusal("busy", "this node is asked too often")
        try:
            probe = read_header(ShareProbe, call.header)
            return Reply(self.load(call.peer, probe.model).fields())
        except ShareError as error:
            return Refusal(error.code, error.message)

    async def _on_ask(self, incoming: IncomingStream) -> None:
        """Answer one request of a peer. The stream ends when the peer has ended its direction."""
        stream = incoming.stream
        try:
            if not self._asks.take(incoming.peer, self._host.now()):
                raise ShareError("busy", "this node is asked too often", hint="try again later")
            ask = read_header(ShareAsk, incoming.header)
            self._find(ask.model)  # before memory is used for the text
            with self._reading(incoming.peer):
                body = await _read_body(stream, ask.size)
            last = await self._while_there(incoming.peer, stream, ask, body)
        except ShareError as error:
            last = pack_frame(
                FrameKind.FAILED, pack(FailedAnswer(error.code, error.message[:1000]))
            )
        if last:
            await _finish(stream, last)

    @contextmanager
    def _reading(self, peer: PeerId) -> Iterator[None]:
        """Hold a place for reading the text of a request. Raises ShareError `busy` if there is
        none.

        Without it, a peer could have a text arriving on each of its streams.
        """
        if self._texts[peer] >= defaults.PER_PEER or self._texts.total() >= defaults.TEXTS:
            raise ShareError("busy", "the texts of many requests are arriving", hint="try again")
        self._texts[peer] += 1
        try:
            yield
        finally:
            self._texts[peer] -= 1
            if not self._texts[peer]:
                del self._texts[peer]

    async def _while_there(
        self, peer: PeerId, stream: Stream, ask: ShareAsk, body: ShareBody
    ) -> bytes:
        """Answer a request until the peer leaves. Return the last frame, or nothing if it left.

        Raises ShareError.
        """
        out = _Out(stream)
        last, failure = b"", list[ShareError]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_left, stream, nursery.cancel_scope)
            nursery.start_soon(out.stay_alive)
            try:
                figures = await self.answer(peer, ask, body, out.text)
                last = pack_frame(FrameKind.END, pack(figures))
            except ShareError as error:
                failure.append(error)
            except _LOST:
                last = b""
            nursery.cancel_scope.cancel()
        if failure:
            raise failure[0]
        return last


class _Out:
    """Frames on their way to a gateway."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._sent = trio.Event()

    async def text(self, text: str) -> None:
        """Send a part of the answer. Raises ShareError `slow-reader` if the gateway does not read
        it."""
        self._sent.set()
        with trio.move_on_after(defaults.SLOW_TIME):
            await self._stream.send(text_frames(text))
            return
        raise ShareError("slow-reader", "the gateway does not read the answer")

    async def stay_alive(self) -> None:
        """Send a frame whenever no other one was sent for ALIVE seconds."""
        while True:
            self._sent = trio.Event()
            with trio.move_on_after(defaults.ALIVE):
                await self._sent.wait()
                await trio.sleep(defaults.ALIVE / 10)
                continue
            try:
                self._stream.send_ready(pack_frame(FrameKind.WAITING))
            except BlockingIOError:
                continue  # it does not read what was sent before
            except _LOST:
                return


def check(ask: ShareAsk, body: ShareBody, takes: frozenset[str]) -> None:
    """Raise ShareError if an engine that takes `takes` cannot honour a request."""
    if ask.raw != (not body.messages):
        raise BadShare("expected messages for a chat, and a prompt for a raw request")
    if missing := sorted(ask.needs - takes):
        raise unsupported(ask.model, missing)


def unsupported(name: str, missing: list[str]) -> ShareError:
    """Return the error for a request that needs what the engine of a shared model does not
    honour."""
    words = {"chat": "chats", "text": "prompts without a chat template", "top-k": "`top_k`"}
    listed = ", ".join(words.get(each, f"`{each}`") for each in missing)
    what = f"the engine behind the shared model `{name}` takes no {listed}"
    return ShareError("unsupported", what, hint=LEAVE_OUT)


async def _read_body(stream: Stream, size: int) -> ShareBody:
    """Read the body of a request. Raises BadShare if it is malformed, or does not arrive in
    time."""
    data = bytearray()
    with trio.move_on_after(defaults.BODY_TIME):
        while len(data) < size:
            piece = await stream.receive(size - len(data))
            if not piece:
                raise BadShare("the request ended early")
            data += piece
        return read_payload(ShareBody, bytes(data), defaults.BODY_BYTES)
    raise BadShare("the request did not arrive in time")


async def _until_left(stream: Stream, scope: trio.CancelScope) -> None:
    """Cancel the request as soon as the gateway ends its direction, sends more, or is lost."""
    await stream.wait_receivable()
    scope.cancel()


async def _finish(stream: Stream, last: bytes) -> None:
    """Send the last frame, and wait until the gateway has it and ends its direction."""
    with trio.move_on_after(defaults.CLOSE_TIME):
        try:
            await stream.send(last)
            await stream.finish()
            while await stream.receive(_PIECE):
                pass
        except _LOST:
            return
