"""The gateway's side: chooses a sharer of a model, forwards a request to it, and reads the answer.

Sharers of one name are chosen by a live probe. Until the first text, another one is tried if one
refuses or is lost. After it, nothing can continue the answer.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from ...transport import naming, shortid
from ...transport.dial.endpoint import Endpoint
from ...transport.errors import CallRefused, LinkClosed
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.lane.frame import Priority
from ...transport.link.link import Link
from ...transport.link.stream import Stream
from ..defaults import MAX_NEW_TOKENS
from ..inference.courier import Courier
from ..inference.generation import Emit, Forwarded, GenerateRequest, Summary
from ..text.process import ChatTurn, TextDelta
from . import counting, defaults
from .desk import LEAVE_OUT, SharingDesk, unsupported
from .errors import BadShare, ShareError
from .messages import (
    ROLES,
    AnswerEnd,
    ConversationTurn,
    FailedAnswer,
    FrameKind,
    Frames,
    ShareAsk,
    ShareBody,
    ShareLoad,
    ShareProbe,
    pack_body,
    read_header,
    read_payload,
)
from .offers import SharedOffer

_GONE = (CallRefused, LinkClosed)
_PIECE = 1 << 16  # bytes of one read
_FIRST = 1 << 16  # bytes of a request's text that leave together with the request
_FAR = 1e9  # seconds predicted for a sharer that did not reply
_SEED_BITS = 63
_AGAIN: Final = "run it again; `shoal model list` shows its sharers"
_CODES: Final = frozenset(
    (
        "bad-engine", "bad-share", "busy", "engine-failed", "engine-gone", "engine-locked",
        "engine-lost", "engine-refused", "engine-silent", "not-shared", "slow-reader",
        "unsupported",
    )
)  # fmt: skip
"""Codes of a sharer that reach the client. Others could mislead a program."""


class Received:
    """The text of one answer as it arrives. `began` is when the request was sent."""

    def __init__(
        self, peer: PeerId, ask: ShareAsk, body: ShareBody, emit: Emit, host: Host
    ) -> None:
        self._peer = peer
        self._ask = ask
        self._body = body
        self._emit = emit
        self._host = host
        self._texts: list[str] = []
        self._size = 0
        self._pieces = 0
        self._began = host.now()
        self._first = self._last = 0.0

    @property
    def started(self) -> bool:
        """Whether any text has arrived."""
        return bool(self._texts)

    async def start(self) -> None:
        """Tell the client which member answers."""
        await self._emit(Forwarded(self._peer))

    async def text(self, text: str, pieces: int = 1) -> None:
        """Pass on text, which arrived in a number of pieces. Raises BadShare if it is more than was
        asked for."""
        self._size += len(text.encode("utf-8", "replace"))
        if self._size > counting.most_bytes(self._ask.max_tokens):
            raise BadShare("the sharer sent more text than the tokens asked for can have")
        self._last = self._host.now()
        if not self._texts:
            self._first = self._last
            await self.start()
        self._texts.append(text)
        self._pieces += pieces
        await self._emit(TextDelta(text, False))

    async def end(self, figures: AnswerEnd) -> Summary:
        """Return the answer with its figures, of which implausible counts are cut."""
        if not self._texts:
            self._first = self._last = self._host.now()
            await self.start()
        turns = max(1, len(self._body.messages))
        most = self._ask.max_tokens
        tokens = counting.answer_tokens(figures.tokens, self._size, self._pieces, most)
        took = self._last - self._first
        return Summary(
            reason=figures.reason,
            prompt_tokens=counting.prompt_tokens(
                figures.prompt_tokens, self._body.text_bytes, turns
            ),
            tokens=tokens,
            ttft_s=self._first - self._began,
            tokens_per_s=max(0, tokens - 1) / took if took > 0 else 0.0,
            hop_ms=0.0,
            text="".join(self._texts),
            token_ids=(),
        )


class Asking:
    """Sends this node's requests to the members that share a model. `desk` is this node's own."""

    def __init__(self, host: Host, endpoint: Endpoint, courier: Courier, desk: SharingDesk) -> None:
        self._host = host
        self._endpoint = endpoint
        self._courier = courier
        self._desk = desk
        self._failed: dict[PeerId, float] = {}  # when each sharer failed last
        self.running = 0

    async def generate(
        self, request: GenerateRequest, offers: Sequence[SharedOffer], emit: Emit
    ) -> Summary:
        """Have one of the sharers answer. `emit` receives the sharer, then the text.

        If the call is cancelled or `emit` raises, the sharer's engine stops. Raises ShareError.
        """
        fitting = _fitting(request, offers)
        body = _body_of(request)
        self.running += 1
        try:
            return await self._any(request, body, await self._ordered(fitting), emit)
        finally:
            self.running -= 1

    async def _any(
        self, request: GenerateRequest, body: ShareBody, offers: Sequence[SharedOffer], emit: Emit
    ) -> Summary:
        """Ask the sharers in order until one begins to answer. Raises the last one's error."""
        packed = pack_body(body)
        for number, offer in enumerate(offers[: defaults.TRIES], 1):
            ask = _ask_of(request, offer, len(packed))
            received = Received(offer.peer, ask, body, emit, self._host)
            try:
                if offer.peer == self._courier.peer:
                    return await received.end(
                        await self._desk.answer(offer.peer, ask, body, received.text)
                    )
                return await self._remote(offer.peer, ask, packed, received)
            except ShareError as error:
                self._note(offer.peer)
                if received.started or number == min(len(offers), defaults.TRIES):
                    raise _told(offer, error) from None
        raise AssertionError("there is at least one offer")

    # Choosing.

    async def _ordered(self, offers: Sequence[SharedOffer]) -> list[SharedOffer]:
        """Return the sharers, the one with the shortest wait first. A single one is not probed."""
        if len(offers) == 1:
            return list(offers)
        waits: dict[PeerId, float] = {}

        async def probe(offer: SharedOffer) -> None:
            waits[offer.peer] = await self._probe(offer)

        asked = sorted(offers, key=lambda offer: self._order(offer, {}))[: defaults.PROBED]
        async with trio.open_nursery() as nursery:
            for offer in asked:
                nursery.start_soon(probe, offer)
        return sorted(asked, key=lambda offer: self._order(offer, waits))

    def _order(
        self, offer: SharedOffer, waits: dict[PeerId, float]
    ) -> tuple[bool, float, bool, str]:
        failed = self._failed.get(offer.peer, float("-inf"))
        avoided = self._host.now() < failed + defaults.AVOID
        far = not self._courier.reaches(offer.peer)
        return avoided, waits.get(offer.peer, 0.0), far, offer.peer

    async def _probe(self, offer: SharedOffer) -> float:
        """Return the predicted seconds until a sharer's first text; _FAR if it does not reply."""
        name, began = offer.model.name, self._host.now()
        with trio.move_on_after(defaults.PROBE_TIME):
            try:
                if offer.peer == self._courier.peer:
                    return self._desk.load(offer.peer, name).wait_s
                link = await self._link(offer.peer)
                fields = ShareProbe(name).fields()
                reply = await link.call("share.probe", fields, timeout=defaults.PROBE_TIME)
                load = read_header(ShareLoad, reply.header)
                return load.wait_s + self._host.now() - began
            except (ShareError, *_GONE):
                return _FAR
        return _FAR

    def _note(self, peer: PeerId) -> None:
        """Remember that a sharer failed, for AVOID seconds."""
        now = self._host.now()
        self._failed = {p: at for p, at in self._failed.items() if now < at + defaults.AVOID}
        self._failed[peer] = now

    # Forwarding.

    async def _remote(
        self, peer: PeerId, ask: ShareAsk, body: bytes, received: Received
    ) -> Summary:
        """Forward a request to a peer, and return its whole answer. Raises ShareError."""
        with trio.move_on_after(defaults.ANSWER_TIME + defaults.WAIT_TIME):
            async with self._stream(peer, ask, body[:_FIRST]) as stream:
                if rest := body[_FIRST:]:
                    await stream.send(rest)
                return await self._read(stream, received)
        raise ShareError("share-lost", "the answer took too long")

    @asynccontextmanager
    async def _stream(self, peer: PeerId, ask: ShareAsk, first: bytes) -> AsyncIterator[Stream]:
        """Open a stream for a request with its first bytes, and end it with the block.

        Raises ShareError if the stream or its link breaks.
        """
        link = await self._link(peer)
        try:
            stream = await link.open_stream(
                "share.ask", ask.fields(), priority=Priority.ACTIVATION, first=first
            )
            try:
                yield stream
            finally:
                with trio.CancelScope(shield=True):
                    await stream.aclose()
        except CallRefused as error:
            raise _refused(error.code) from None
        except LinkClosed as error:
            raise ShareError("share-lost", f"the link to it ended: {error.message}") from None

    async def _link(self, peer: PeerId) -> Link:
        """Return a link to a sharer. One behind a router that has just started may need several
        dials."""
        with trio.move_on_after(defaults.LINK_TIME):
            while True:
                await self._courier.meet(peer)
                if (link := self._endpoint.link(peer)) is not None:
                    link.need()
                    return link
                await trio.sleep(defaults.LINK_PAUSE)
        raise ShareError("unreachable", "no link to it could be established")

    async def _read(self, stream: Stream, received: Received) -> Summary:
        """Read the frames of an answer to its end."""
        frames, began = Frames(), self._host.now()
        while True:
            last = await _take(frames.feed(await _next(stream)), received)
            if last is not None:
                return await received.end(last)
            if not received.started and self._host.now() > began + defaults.WAIT_TIME:
                raise ShareError("busy", "its engine did not begin in time")


async def _next(stream: Stream) -> bytes:
    """Return the next bytes of an answer. Raises ShareError if none arrive in time."""
    with trio.move_on_after(defaults.SILENT):
        if piece := await stream.receive(_PIECE):
            return piece
        raise ShareError("share-lost", "it ended the answer early")
    raise ShareError("share-lost", "it has fallen silent")


async def _take(found: Sequence[tuple[int, bytes]], received: Received) -> AnswerEnd | None:
    """Process frames that have arrived together. Return the figures if the answer has ended.

    Raises BadShare if a frame is malformed, and ShareError if the sharer reports a failure.
    """
    texts = [payload for kind, payload in found if kind == FrameKind.TEXT]
    if texts:
        await received.text(_decoded(b"".join(texts)), len(texts))
    for kind, payload in found:
        if kind == FrameKind.END:
            return read_payload(AnswerEnd, payload)
        if kind == FrameKind.FAILED:
            failure = read_payload(FailedAnswer, payload)
            code = failure.code if failure.code in _CODES else "share-failed"
            raise ShareError(code, naming.escaped(failure.message))
    return None


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadShare("the sharer sent text that is not UTF-8") from None


def _fitting(request: GenerateRequest, offers: Sequence[SharedOffer]) -> list[SharedOffer]:
    """Return the offers that honour every parameter of a request. Raises ShareError `unsupported`
    if none does."""
    name = offers[0].model.name
    refused = {
        "LoRA adapters": bool(request.adapter),
        "log probabilities": request.logprobs or request.top > 0,
        "`min_p`": request.sampling.min_p > 0,
        "penalties": request.rules.penalise,
        "bias of tokens": bool(request.rules.bias),
        "exactness": request.exact,
        "a beginning that was received": bool(request.received),
    }
    for what, wanted in refused.items():
        if wanted:
            what = f"shared models such as `{name}` take no {what}"
            raise ShareError("unsupported", what, hint=LEAVE_OUT)
    needs = _ask_of(request, offers[0], 1).needs
    fitting = [offer for offer in offers if needs <= set(offer.model.takes)]
    if not fitting:
        raise unsupported(name, sorted(needs - set(offers[0].model.takes)))
    return fitting


def _ask_of(request: GenerateRequest, offer: SharedOffer, size: int) -> ShareAsk:
    """Return the request to a sharer, without its text of `size` bytes."""
    wanted = request.max_tokens or MAX_NEW_TOKENS
    if wanted < 1:
        raise ShareError("bad-request", f"cannot generate {wanted} tokens")
    sampling = request.sampling
    return ShareAsk(
        model=offer.model.name,
        size=size,
        max_tokens=min(wanted, offer.model.context or wanted),
        raw=request.raw,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed % 2**_SEED_BITS,
    )


def _body_of(request: GenerateRequest) -> ShareBody:
    """Return the text of a request. Raises ShareError `bad-request` if it is empty or too long."""
    turns = request.messages or (() if request.raw else (ChatTurn("user", request.prompt or ""),))
    body = ShareBody(
        prompt=request.prompt or "" if request.raw else "",
        messages=tuple(map(_turn, turns)),
        stop=request.stop,
    )
    try:
        body.check()
    except ValueError as error:
        raise ShareError("bad-request", str(error)) from None
    return body


def _turn(turn: ChatTurn) -> ConversationTurn:
    for role in ROLES:
        if turn.role == role:
            return ConversationTurn(role, turn.content)
    raise ShareError("bad-request", f"a shared model takes no messages of {ascii(turn.role)[:32]}")


def _refused(code: str) -> ShareError:
    """Return the error for a stream that a sharer has reset with a code."""
    if code == "busy":
        return ShareError("busy", "it takes no more streams")
    if code == "unknown-method":
        return ShareError("unreachable", "its version of shoal does not share models")
    return ShareError("share-lost", f"it reset the stream ({code})")


def _told(offer: SharedOffer, error: ShareError) -> ShareError:
    """Return an error that names the sharer."""
    peer = shortid.short(offer.peer)
    what = f"`{offer.model.name}`, shared by {peer}: {error.message}"
    return ShareError(error.code, what, hint=error.hint or _AGAIN)
