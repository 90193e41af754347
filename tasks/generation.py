"""One generation as its gateway knows it: the request, the tokens so far, the text, the figures."""

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Protocol

import trio

from ..transport.identity import PeerId
from .defaults import EMIT_PACE
from .engine.interface import Sampling, SessionId
from .errors import SessionError
from .routing import Hop
from .session import Progress, Token
from .text.process import Detokenizer, Message, TextDelta, TextInfo

Reason = Literal["stop", "length"]


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


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What a client asks: `prompt` or `messages`; `raw` leaves the chat template out."""

    model: str
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    raw: bool = False
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()


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
    """One session as its gateway knows it. The token ids stay here, whatever else is lost."""

    def __init__(self, session: SessionId, route: Sequence[Hop], ids: list[int], new: int) -> None:
        self.session = session
        self.route = tuple(route)
        self.ids = ids  # prompt and generated
        self.new = new  # tokens to generate at most
        self.prompt = len(ids)
        self.epoch = 1
        self._expected = len(ids)
        self._progress = 0
        self._final = False
        self._broken = False
        self._ended = trio.Event()  # the final token or an error has come
        self._next_at = 0.0  # when tokens are to be made text again
        # Unbounded, but receive() lets in no more than `new` tokens and one progress a position.
        self._send, self._inbox = trio.open_memory_channel[Arrived | Progress | SessionError](
            math.inf
        )

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
        self._put(Arrived(token, now))

    def take_progress(self, progress: Progress) -> None:
        if not self._progress < progress.position < self.prompt:
            self.fail(SessionError("bad-stage", f"{self.describe(-1)} sent an impossible progress"))
            return
        self._progress = progress.position
        self._put(progress)

    def fail(self, error: SessionError) -> None:
        """End the session with the first error that comes."""
        if not self._broken:
            self._put(error)
            self._broken = True
            self._ended.set()

    async def heard(self) -> list[Arrived | Progress | SessionError]:
        """What has come, in order, at least one; an error is the last that ever comes.

        Tokens of a fast model are gathered for EMIT_PACE seconds, but for the first and the
        last: a person sees no difference, and making text of each costs more than the token.
        """
        items = [await self._inbox.receive()]
        if isinstance(items[0], Arrived):
            if self._next_at > trio.current_time():
                with trio.move_on_at(self._next_at):
                    await self._ended.wait()
            self._next_at = trio.current_time() + EMIT_PACE
        with suppress(trio.WouldBlock):
            while True:
                items.append(self._inbox.receive_nowait())
        return items

    def _put(self, item: Arrived | Progress | SessionError) -> None:
        if not self._broken:
            self._send.send_nowait(item)

    def describe(self, index: int) -> str:
        """A stage for a person: its place, peer and layers."""
        hop = self.route[index]
        place = self.route.index(hop) + 1
        layers = f"layers {hop.parts.start}:{hop.parts.stop}"
        return f"stage {place} of {len(self.route)} ({hop.peer}, {layers})"


class Answer:
    """Tokens to text, and the figures of the summary."""

    def __init__(
        self, run: Run, model: Model, request: GenerateRequest, emit: Emit, began: float
    ) -> None:
        self._run = run
        self._model = model
        self._stop = request.stop
        self._emit = emit
        self._began = began
        self._text: list[str] = []
        self._times: list[float] = []
        self._computing = 0.0  # seconds the stages computed, after the first token
        self._reason: Reason = "length"

    async def prepare(self) -> None:
        self._detokenizer = await self._model.text.detokenizer(self._stop)

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
            self._run.ids.append(item.token.token)
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
        if self._times:
            self._computing += arrived.token.seconds
        self._times.append(arrived.at)

    async def _write(self, text: str) -> None:
        if text:
            self._text.append(text)
            await self._emit(TextDelta(text, False))

    def summary(self) -> Summary:
        took = self._times[-1] - self._times[0]
        further = len(self._times) - 1
        on_the_way = max(0.0, took - self._computing)
        return Summary(
            reason=self._reason,
            prompt_tokens=self._run.prompt,
            tokens=len(self._times),
            ttft_s=self._times[0] - self._began,
            tokens_per_s=further / took if took > 0 else 0.0,
            hop_ms=1e3 * on_the_way / (further * len(self._run.route)) if further else 0.0,
            text="".join(self._text),
            token_ids=tuple(self._run.ids[self._run.prompt :]),
        )
