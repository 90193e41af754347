"""One generation as its gateway knows it: the request, the tokens so far, the text, the figures."""

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Protocol

import trio

from ..transport.identity import PeerId
from .defaults import EMIT_PACE, STALLED
from .engine.interface import Sampling, SessionId
from .errors import SessionError
from .routing import Hop
from .session import Progress, Token
from .text.process import Detokenizer, Message, TextDelta, TextInfo

Reason = Literal["stop", "length", "context"]
"""Why an answer ended: the model or a stop string, the limit of the request, the full context."""


class Text(Protocol):
    """What the gateway needs of a model's text process."""

    @property
    def info(self) -> TextInfo: ...

    async def encode(self, text: str) -> list[int]: ...

    async def encode_chat(self, messages: Sequence[Message]) -> list[int]: ...

    async def detokenizer(self, stop: Sequence[str] = ()) -> Detokenizer: ...


@dataclass(frozen=True, slots=True)
class Model:
    """A model ready to be asked; `context` and `vocabulary` in tokens, `hidden` in values."""

    root: str
    name: str
    layers: int
    hidden: int
    context: int
    vocabulary: int
    text: Text


class Turn(Protocol):
    """When a request may compute for which nobody waits."""

    def is_over(self) -> bool:
        """Whether somebody who waits has come."""
        ...

    async def come(self) -> None:
        """Return when it is not over any more."""
        ...


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What a client asks: `prompt` or `messages`; `raw` leaves the chat template out. One for a
    `job` has a `turn`: it gives its chain up while that is over, and goes on behind the last token
    later."""

    model: str
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    raw: bool = False
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    job: str = ""  # its id
    turn: Turn | None = None


@dataclass(frozen=True, slots=True)
class Routed:
    """The chain that answers, in layer order."""

    stages: tuple[Hop, ...]


GatewayEvent = Routed | TextDelta
Emit = Callable[[GatewayEvent], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Summary:
    """How a generation ended. `hop_ms`: of a token's time, what was not computing, per hop."""

    reason: Reason
    prompt_tokens: int
    tokens: int
    ttft_s: float
    tokens_per_s: float
    hop_ms: float
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Arrived:
    token: Token
    at: float  # seconds, when the message came


class Run:
    """One session as its gateway knows it. The token ids stay here, whatever else is lost.

    What another chain has generated before is prompt to this one.
    """

    def __init__(
        self,
        session: SessionId,
        route: Sequence[Hop],
        ids: list[int],
        new: int,
        now: float,
        *,
        job: str = "",
    ) -> None:
        self.session = session
        self.job = job
        self.route = tuple(route)
        self.ids = ids  # prompt and generated
        self.new = new  # tokens to generate at most
        self.prompt = len(ids)
        self.start = self.prompt - 1  # the first position to compute
        self.epoch = 1
        self.heard_at = now  # when the chain last gave a sign
        self._quiet: set[tuple[PeerId, PeerId]] = set()  # a stage, and the neighbour it misses
        self._looking = False
        self._expected = len(ids)
        self._progress = 0
        self._final = False
        self._broken = False
        self._ended = trio.Event()  # the final token or an error has come
        self._next_at = 0.0  # when tokens are to be made text again
        # Unbounded, but receive() lets in no more than `new` tokens and one progress a position.
        # None, one at most, is no news but a reason to look at the quiet ones.
        self._send, self._inbox = trio.open_memory_channel[
            Arrived | Progress | SessionError | None
        ](math.inf)

    @property
    def peers(self) -> tuple[PeerId, ...]:
        return tuple(hop.peer for hop in self.route)

    def check(self, sender: PeerId, epoch: int, *, head: bool) -> None:
        """Raises SessionError unless the sender may say this in this epoch."""
        if sender not in self.peers or (head and sender != self.peers[-1]):
            raise SessionError("not-yours", "that is said by another stage of the session")
        if epoch != self.epoch:
            raise SessionError("stale-epoch", f"the session is in epoch {self.epoch}")

    def take_token(self, token: Token, vocabulary: int, now: float) -> None:
        """The head's next token; anything else than the next breaks the session.

        After the final one nothing counts.
        """
        if self._final:
            return
        if token.position != self._expected or token.token >= vocabulary:
            self.fail(SessionError("bad-stage", f"{self.describe(-1)} sent an impossible token"))
            return
        self._expected += 1
        left = self.prompt + self.new - self._expected
        if left < 0 or (left == 0 and not token.final):
            self.fail(SessionError("bad-stage", f"{self.describe(-1)} does not stop"))
            return
        if token.final:
            self._final = True
            self._ended.set()
        self.heard_at = now
        self._put(Arrived(token, now))

    def take_progress(self, progress: Progress, now: float) -> None:
        if not self._progress < progress.position < self.prompt:
            self.fail(SessionError("bad-stage", f"{self.describe(-1)} sent an impossible progress"))
            return
        self._progress = progress.position
        self.heard_at = now
        self._put(progress)

    def take_quiet(self, sender: PeerId, peer: PeerId, *, quiet: bool) -> None:
        """What a stage says of a neighbour."""
        if peer not in self.peers or sender == peer:
            return
        if quiet:
            self._quiet.add((sender, peer))
            self.look()
        else:
            self._quiet.discard((sender, peer))

    @property
    def missed(self) -> frozenset[PeerId]:
        """Whom other stages of the chain do not hear."""
        return frozenset(peer for _, peer in self._quiet)

    @property
    def parted(self) -> frozenset[PeerId]:
        """These, and who says so: one of each two has lost the other."""
        return frozenset(peer for pair in self._quiet for peer in pair)

    def has_gone_on(self, since: float) -> bool:
        """Whether the chain has given a sign since then, and may give more."""
        return self.heard_at > since and not self._broken

    def is_stalled(self, now: float) -> bool:
        """Whether the chain has been still for longer than one that goes on in spite of it all."""
        return now >= self.heard_at + STALLED

    def look(self) -> None:
        """Have `heard` return, perhaps with nothing."""
        if not self._looking:
            self._looking = True
            self._put(None)

    def fail(self, error: SessionError) -> None:
        """End the session with the first error that comes."""
        if not self._broken:
            self._put(error)
            self._broken = True
            self._ended.set()

    async def heard(self, timeout: float) -> list[Arrived | Progress | SessionError]:
        """What has come, in order; an error is the last that ever comes. Nothing after `timeout`
        seconds, or when there is a reason to look.

        Tokens of a fast model are gathered for EMIT_PACE seconds, but for the first and the
        last: a person sees no difference, and making text of each costs more than the token.
        """
        items: list[Arrived | Progress | SessionError | None] = []
        with trio.move_on_after(timeout):
            items.append(await self._inbox.receive())
        if items and isinstance(items[0], Arrived):
            if self._next_at > trio.current_time():
                with trio.move_on_at(self._next_at):
                    await self._ended.wait()
            self._next_at = trio.current_time() + EMIT_PACE
        with suppress(trio.WouldBlock):
            while True:
                items.append(self._inbox.receive_nowait())
        self._looking = False
        return [item for item in items if item is not None]

    def _put(self, item: Arrived | Progress | SessionError | None) -> None:
        if not self._broken:
            self._send.send_nowait(item)

    def describe(self, index: int) -> str:
        """A stage for a person: its place, peer and layers."""
        hop = self.route[index]
        place = self.route.index(hop) + 1
        layers = f"layers {hop.parts.start}:{hop.parts.stop}"
        return f"stage {place} of {len(self.route)} ({hop.peer}, {layers})"


class Answer:
    """Tokens to text, and the figures of the summary. `ids` begins as the prompt, and gets what
    is generated. `at_context`: the last token that may be generated fills the context."""

    def __init__(
        self,
        ids: list[int],
        model: Model,
        request: GenerateRequest,
        emit: Emit,
        began: float,
        *,
        at_context: bool = False,
    ) -> None:
        self._ids = ids
        self._prompt = len(ids)
        self._hops = 1
        self._model = model
        self._stop = request.stop
        self._emit = emit
        self._began = began
        self._text: list[str] = []
        self._times: list[float] = []
        self._computing = 0.0  # seconds the stages computed, after the first token
        self._between = 0.0  # seconds that passed from one chain to the next
        self._moved = False
        self._reason: Reason = "context" if at_context else "length"

    async def prepare(self) -> None:
        self._detokenizer = await self._model.text.detokenizer(self._stop)

    @property
    def made(self) -> int:
        """Tokens taken so far."""
        return len(self._ids) - self._prompt

    async def begin(self, route: Sequence[Hop]) -> None:
        """This chain is to answer, or to go on with the answer."""
        self._hops = len(route)
        self._moved = bool(self._times)
        await self._emit(Routed(tuple(route)))

    async def add(self, arrived: Sequence[Arrived]) -> bool:
        """Take tokens; says whether the last was among them.

        Those that came while a text was on its way are made text together, but singly where
        a stop string may end it, so that no more than needed count.
        """
        step = 1 if self._stop else len(arrived)
        for first in range(0, len(arrived), step):
            if await self._add(arrived[first : first + step]):
                return True
        return False

    async def _add(self, arrived: Sequence[Arrived]) -> bool:
        last, fresh = False, list[int]()
        for item in arrived:
            self._measure(item)
            self._ids.append(item.token.token)
            last = item.token.final
            if item.token.token in self._model.text.info.stop_ids:
                self._reason, last = "stop", True
                break
            fresh.append(item.token.token)
        delta = await self._detokenizer.push(*fresh)
        await self._write(delta.text)
        if delta.stopped:
            self._reason = "stop"
        elif last:
            await self._write(await self._detokenizer.finish())
        return last or delta.stopped

    def _measure(self, arrived: Arrived) -> None:
        if self._moved:
            self._between += arrived.at - self._times[-1]
            self._moved = False
        elif self._times:
            self._computing += arrived.token.seconds
        self._times.append(arrived.at)

    async def _write(self, text: str) -> None:
        if text:
            self._text.append(text)
            await self._emit(TextDelta(text, False))

    def summary(self) -> Summary:
        took = self._times[-1] - self._times[0]
        further = len(self._times) - 1
        on_the_way = max(0.0, took - self._computing - self._between)
        return Summary(
            reason=self._reason,
            prompt_tokens=self._prompt,
            tokens=len(self._times),
            ttft_s=self._times[0] - self._began,
            tokens_per_s=further / took if took > 0 else 0.0,
            hop_ms=1e3 * on_the_way / (further * self._hops) if further else 0.0,
            text="".join(self._text),
            token_ids=tuple(self._ids[self._prompt :]),
        )
