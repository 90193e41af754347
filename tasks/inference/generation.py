"""State of one generation at its gateway: request, session, tokens, text and figures."""

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ...transport.identity import PeerId
from ..defaults import EMIT_PACE
from ..drafting.modelguesses import ModelGuesses
from ..drafting.speculation import DraftCounts, Speculation
from ..engine.activations.layout import Activations
from ..engine.families import Architecture
from ..engine.interface import NO_RULES, Rules, Sampling, SessionId
from ..engine.kv.blocks import BLOCK
from ..errors import SessionError
from ..routing.defaults import MEASURED_LEAST, MEASURED_TOKENS
from ..routing.paths import Hop
from ..text.frames import TextInfo
from ..text.process import ChatTurn, Detokenizer, TextDelta
from .conversation.heldkv import HeldKv
from .conversation.items import Arrived, Complete, Item, ItemQueue, LeftOut, Needed, Pooled
from .messages import Held, Need, PooledSpan, Rebuilt, SampledToken, SpanProgress
from .surviving.continuing import Continuation
from .surviving.pace import Pace

Reason = Literal["stop", "length", "context"]
"""Why an answer ended.

`stop`: the model or a stop string ended it. `length`: it reached the request's limit. `context`:
the context is full.
"""


class TextCodec(Protocol):
    """Interface of a model's text process, limited to what the gateway needs."""

    @property
    def info(self) -> TextInfo: ...

    async def encode(self, text: str, *, add_special: bool = True) -> list[int]: ...

    async def encode_chat(
        self, messages: Sequence[ChatTurn], *, add_generation_prompt: bool = True
    ) -> list[int]: ...

    async def detokenizer(self, stop: Sequence[str] = ()) -> Detokenizer: ...


@dataclass(frozen=True, slots=True)
class Model:
    """A model that can answer. `context` is in tokens, `vocabulary` the number of token ids.

    `hidden` is the number of values in a hidden state. `adapter` is the root of the adapter that a
    request uses, or "". `family` is that of its architecture. `arch` describes the model for the
    cost model, if it is known.
    """

    root: str
    name: str
    layers: int
    hidden: int
    context: int
    vocabulary: int
    text: TextCodec
    adapter: str = ""
    family: str = ""
    arch: Architecture | None = None

    @property
    def identity(self) -> str:
        """The roots of the model and of the adapter, on which the KV of a prefix depends."""
        return self.root + self.adapter


class Turn(Protocol):
    """Permission to compute for a request without a waiting user, such as a job's request."""

    def is_over(self) -> bool:
        """Return whether an interactive request now has priority."""
        ...

    async def come(self) -> None:
        """Wait until no interactive request has priority."""
        ...


@dataclass(slots=True, eq=False)
class Apart:
    """Peers `without` which a request is to be computed, and those that were `used`."""

    without: frozenset[PeerId] = frozenset()
    used: set[PeerId] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A client's request, with either `prompt` or `messages`.

    If `raw`, the chat template is skipped. A request for a job has a `turn`: when it ends, the
    request closes its chain, and in the next turn it continues after the last token. If
    `logprobs`, the events carry each token with its probability, and the `top` most likely tokens
    at its place. If `exact`, hidden states and KV travel as they were computed. `received` is the
    beginning of the answer, from another gateway with the same seed: it is not emitted. `user` is a
    name for the user of this node, or "": stages get a tag in its place, by which they share this
    node's part of their time. `adapter` is the name or root of an adapter, or "". `apart` restricts
    the chains.
    """

    model: str
    prompt: str | None = None
    messages: tuple[ChatTurn, ...] | None = None
    raw: bool = False
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    rules: Rules = NO_RULES
    stop: tuple[str, ...] = ()
    job: str = ""  # id of the job, or ""
    turn: Turn | None = None
    logprobs: bool = False
    top: int = 0
    user: str = ""
    adapter: str = ""
    apart: Apart | None = None
    exact: bool = False
    received: str = ""


@dataclass(frozen=True, slots=True)
class Routed:
    """Event: the chain that answers, in layer order."""

    stages: tuple[Hop, ...]


@dataclass(frozen=True, slots=True)
class Forwarded:
    """Event: the member whose engine answers, because it shares the model, which has no root."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Awaited:
    """Event: the answer waits until a node has loaded the layers of lost stages. `layers` are
    ranges, each with an exclusive end. It waits for `most_s` seconds at most."""

    layers: tuple[tuple[int, int], ...]
    most_s: float


GatewayEvent = Routed | Forwarded | Awaited | TextDelta
Emit = Callable[[GatewayEvent], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Summary:
    """Outcome and timing of a generation.

    `ttft_s` is the time to the first token in seconds. `hop_ms` is the mean time per token and hop
    in milliseconds, without the time spent computing. `drafts` counts guesses of later tokens.
    `logprobs` are those of the tokens.
    """

    reason: Reason
    prompt_tokens: int
    tokens: int
    ttft_s: float
    tokens_per_s: float
    hop_ms: float
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    drafts: DraftCounts = field(default_factory=DraftCounts)


@dataclass(frozen=True, slots=True)
class SessionPurpose:
    """Purpose of a session. `job` is the id of its job, or "". `user` is the name of the user in
    whose name it runs, or "". A `pooled` session generates no tokens. `top` is the number of most
    likely tokens that come with each token. An `exact` session uses no KV that stems from copies in
    int8. `rules` change the logits."""

    job: str = ""
    user: str = ""
    pooled: bool = False
    top: int = 0
    exact: bool = False
    rules: Rules = NO_RULES


@dataclass(slots=True)
class RunTimes:
    """When the tokens of a session came. Times are in seconds."""

    began: float  # when its stages were open
    opening_s: float = 0.0  # from the choice of the chain until then
    first_at: float | None = None
    last_at: float = 0.0
    tokens: int = 0
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=MEASURED_TOKENS + 1))

    def note(self, now: float) -> None:
        """Record a token."""
        self.last_at = now
        self.latest.append(now)
        self.tokens += 1
        if self.first_at is None:
            self.first_at = now

    @property
    def token_s(self) -> float:
        """Mean time between two tokens, 0 if there are fewer."""
        if self.first_at is None or self.tokens < 2:
            return 0.0
        return (self.last_at - self.first_at) / (self.tokens - 1)

    @property
    def latest_s(self) -> float:
        """Mean time between two of the last MEASURED_TOKENS tokens, 0 if there are too few."""
        count = len(self.latest) - 1
        return (self.latest[-1] - self.latest[0]) / count if count >= MEASURED_LEAST else 0.0


@dataclass(slots=True)
class Standby:
    """A node that is ready to take the place of a stage, opened in `epoch`. It has the KV of `have`
    positions. `fed` says whether it may have any from the stage."""

    hop: Hop
    epoch: int
    have: int = 0
    fed: bool = False
    ready: bool = False  # whether it has the session open


class GenerationRun:
    """A session at its gateway, over one chain of stages.

    The gateway has all token ids, so a session can be continued even if stages are lost: tokens
    that an earlier chain generated are part of the next session's prompt.
    """

    def __init__(
        self,
        session: SessionId,
        chain: Sequence[Hop],
        ids: list[int],
        new: int,
        now: float,
        terms: SessionPurpose = SessionPurpose(),
    ) -> None:
        self.session = session
        self.terms = terms
        self.chain = tuple(chain)
        self.ids = ids  # of the prompt, followed by the generated ones
        self.new = new  # most tokens to generate
        self.prompt = len(ids)
        # The first position to compute. A sum needs the states of all.
        self.start = 0 if terms.pooled else self.latest_start
        self.epoch = 1
        self.can_draft = True  # whether all stages compute windows
        # Stages up to this place have inputs from the present stages alone, so what they cache
        # may be named after these (names.py, `names_behind`).
        self.named = len(self.chain) - 1
        self.held = HeldKv(len(self.chain))
        self.speculation: Speculation | None = None
        self.said: ModelGuesses | None = None  # guesses of a smaller model
        self.continuation: Continuation | None = None  # if the chain was changed
        # The stages' places in the chain, as they know them.
        self.places = {hop.peer: place for place, hop in enumerate(self.chain)}
        self.standbys = dict[int, Standby]()  # by the place of the stage
        self.pace = Pace(now)
        self.suspects: frozenset[PeerId] = frozenset()  # stages that missed their deadline
        self.answered: dict[PeerId, float] = {}  # seconds of each stage's quickest answer
        self.activations: Activations = "exact"  # of all stages
        self.times = RunTimes(now)
        self._quiet: set[tuple[PeerId, PeerId]] = set()  # (stage, its quiet neighbour)
        self.items = ItemQueue()
        self._expected = len(ids)
        self._progress = 0
        self._final = False

    @property
    def latest_start(self) -> int:
        """The position from which the prompt is computed even if all of it is cached.

        The last position is always computed, because its output gives the first token of the
        answer. Computing starts at a block, and at least two positions before the end: engines
        compute a single position as a continuation of a text, and the result may differ in the last
        bit.
        """
        return max(0, (self.prompt - 2) // BLOCK * BLOCK)

    @property
    def skips(self) -> bool:
        """Whether the stages may leave out positions of the prompt of which all of them have the
        KV. A sum needs the states of all, and a chain that continues rebuilds them."""
        return len(self.chain) > 1 and not self.terms.pooled and self.continuation is None

    @property
    def peers(self) -> tuple[PeerId, ...]:
        """The stages' peer ids, in layer order."""
        return tuple(hop.peer for hop in self.chain)

    def covered(self, lost: Collection[str]) -> tuple[Hop, ...]:
        """Return the chain with standbys in place of the stages in `lost`, where there are any."""
        return tuple(
            self.standbys[place].hop
            if hop.peer in lost
            and place in self.standbys
            and self.standbys[place].hop.peer not in lost
            else hop
            for place, hop in enumerate(self.chain)
        )

    @property
    def round_s(self) -> float:
        """Seconds of the latest tokens, each once around the chain; 0 if there were too few.

        Where drafts are right, several tokens come in the time of one. A head that lies about which
        of them do can make this longer only, never shorter.
        """
        latest = self.times.latest_s
        return max(latest, self._undrafted_s) if latest else 0.0

    @property
    def token_s(self) -> float:
        """Mean seconds of a token once around the chain, as `round_s`, over all tokens."""
        return max(self.times.token_s, self._undrafted_s)

    @property
    def _undrafted_s(self) -> float:
        return self.speculation.round_s if self.speculation is not None else 0.0

    def place_of(self, peer: PeerId) -> int:
        """Return the place in the chain at which a stage or a standby has the session."""
        standing = {each.hop.peer: place for place, each in self.standbys.items()}
        return self.places[peer] if peer in self.places else standing[peer]

    def lose_standby(self, peer: PeerId) -> bool:
        """Forget a standby. Return whether there was one at that peer."""
        for place, standby in self.standbys.items():
            if standby.hop.peer == peer:
                del self.standbys[place]
                return True
        return False

    def check(self, sender: PeerId, epoch: int, *, head: bool) -> None:
        """Raise SessionError unless `sender` may send this message in this epoch.

        If `head`, only the last stage may send it.
        """
        if sender not in self.peers or (head and sender != self.peers[-1]):
            raise SessionError("not-yours", "only another stage may send this message")
        if epoch != self.epoch:
            raise SessionError("stale-epoch", f"the session is in epoch {self.epoch}")

    def take_token(self, token: SampledToken, vocabulary: int, now: float) -> bool:
        """Queue the head's next token, and return whether others may follow. A token that is
        invalid or not the next one ends the session.

        Messages after the final token are ignored. `vocabulary` is the number of token ids.
        """
        if self._final:
            return False
        ids = token.token, *(each for each, _ in token.top)
        wrong = token.position != self._expected or len(token.top) > self.terms.top
        if wrong or max(ids) >= vocabulary:
            self.fail(SessionError("bad-stage", f"{self.describe(-1)} sent an invalid token"))
            return False
        self._expected += 1
        left = self.prompt + self.new - self._expected
        if left < 0 or (left == 0 and not token.final):
            self.fail(SessionError("bad-stage", f"{self.describe(-1)} exceeded the token limit"))
            return False
        if token.final:
            self._final = True
        self.pace.note(now, token=True)
        self.times.note(now)
        self.items.put(Arrived(token, now), last=token.final)
        return not token.final

    def take_progress(self, progress: SpanProgress, now: float) -> None:
        """Queue the head's progress in the prompt. Progress that does not advance ends the
        session."""
        if not self._progress < progress.position < self.prompt:
            self.fail(SessionError("bad-stage", f"{self.describe(-1)} sent an invalid progress"))
            return
        self._progress = progress.position
        self.pace.note(now)
        self.items.put(progress)

    def take_pooled(self, progress: PooledSpan, states: tuple[float, ...], now: float) -> None:
        """Queue the sum of a span's final states. One that was not expected ends the session."""
        if not self.terms.pooled or not self._progress < progress.position <= self.prompt:
            self.fail(SessionError("bad-stage", f"{self.describe(-1)} sent an invalid sum"))
            return
        self._progress = progress.position
        self.pace.note(now)
        self.items.put(Pooled(progress.position, states))

    def take_need(self, need: Need) -> None:
        """Queue the first stage's need of tokens. Raises SessionError if it has no such need."""
        if self.continuation is None:
            raise SessionError("bad-message", "the session's chain was not changed")
        self.continuation.want(need.start, need.stop)
        self.items.put(Needed(need.start, need.stop))

    def take_rebuilt(self, rebuilt: Rebuilt, now: float) -> None:
        """Note that a stage has rebuilt a part of its state."""
        rest = self.continuation
        if rest is not None and rest.built(rebuilt.index, rebuilt.position):
            waited, self.pace.heard_at = bool(rest.lacking), now
            if rebuilt.position == rest.resume and waited is False:
                self.items.put(Complete())

    def take_held(self, sender: PeerId, held: Held) -> None:
        """Note what a stage has of the prompt's KV. Raises SessionError if another one says so."""
        if held.index >= len(self.chain) or self.peers[held.index] != sender:
            raise SessionError("not-yours", "that is another stage's state")
        self.held.note(held)
        if self.skips and self.held.becomes_due(self.latest_start):
            self.items.put(LeftOut())

    def take_quiet(self, sender: PeerId, peer: PeerId, *, quiet: bool) -> None:
        """Record that the stage `sender` no longer hears its neighbour `peer`, or hears it
        again."""
        if peer not in self.peers or sender == peer:
            return
        if quiet:
            self._quiet.add((sender, peer))
        else:
            self._quiet.discard((sender, peer))

    @property
    def computed(self) -> int:
        """Number of positions of which all stages have the state."""
        if self._expected > self.prompt:
            return self._expected - 1
        return max(self.start, self._progress // BLOCK * BLOCK)

    @property
    def pending(self) -> int:
        """Number of queued items that `heard` has not returned yet."""
        return self.items.waiting

    @property
    def missed(self) -> frozenset[PeerId]:
        """Stages that a neighbour in the chain no longer hears."""
        return frozenset(peer for _, peer in self._quiet)

    @property
    def parted(self) -> frozenset[PeerId]:
        """Stages that no longer hear a neighbour, together with these neighbours. Either may be at
        fault."""
        return frozenset(peer for pair in self._quiet for peer in pair)

    def has_gone_on(self, since: float) -> bool:
        """Return whether the chain has sent a message after the time `since`, has not failed and
        does not crawl."""
        return self.pace.heard_at > since and not self.items.failed and not self.pace.crawls

    def note_answer(self, peer: PeerId, seconds: float) -> None:
        """Record that a stage has answered a call within `seconds`."""
        self.answered[peer] = min(seconds, self.answered.get(peer, seconds))

    def fail(self, error: SessionError) -> None:
        """Queue `error` as the last item of the session. Later errors are ignored."""
        self.items.put(error)

    async def heard(self, timeout: float, pace: float = EMIT_PACE) -> list[Item]:
        """Return the queued items in order, as `ItemQueue.read` does."""
        return await self.items.read(timeout, pace)

    def describe(self, index: int) -> str:
        """Return a description of the stage at `index` for a person: its position, peer and
        layers."""
        hop = self.chain[index]
        place = self.chain.index(hop) + 1
        layers = f"layers {hop.parts.start}:{hop.parts.stop}"
        return f"stage {place} of {len(self.chain)} ({hop.peer}, {layers})"
