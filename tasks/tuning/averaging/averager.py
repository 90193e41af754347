"""One node's part in a run: publishes and fetches updates, judges them, and hands the trainer the
state after each round. The shell around `Rounds`.

A trainer uses it like this:

    async with trio.open_nursery() as nursery:
        averager = Averager(node, terms, values, judge)
        await nursery.start(averager.run)
        base = averager.base
        while training:
            values = ...  # `terms.inner_steps` steps from base.values, or fewer if `is_overtaken`
            base = await averager.exchange(base, values, tokens)
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol, TypeVar

import numpy as np
import trio

from ....state.errors import FeedFull
from ....state.service import State
from ....state.views.tuning import (
    TUNING,
    HereFact,
    OfferFact,
    StateFact,
    TuningFact,
    state_fact,
)
from ....transport.errors import ShoalError
from ....transport.guard import Guard
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from .actions import (
    Action,
    Adopted,
    ComputeState,
    FetchState,
    FetchUpdate,
    JudgeUpdate,
    Known,
    Sign,
)
from .aggregate import norm_of
from .codecs import Feedback, Vector, decode, encode_difference
from .errors import AveragingError, BadUpdate
from .memory import SpareMemory
from .outer import OuterState, decode_state, first_state
from .parcels import Parcels, Size
from .rounds import Rounds
from .steps import fact_of_offer, fact_of_step, genesis, offer_of, places, step_of_fact
from .terms import RunTerms

T = TypeVar("T")
_STEP_BYTES: Final = 32


class Judge(Protocol):
    """The held-out loss, on data that this node's trainer chose and no other node knows."""

    async def loss(self, values: Vector) -> float:
        """Return the mean loss with these values. It may be infinite.

        Raises ShoalError if it cannot be computed now.
        """
        ...


@dataclass(frozen=True, slots=True)
class AveragingNode:
    """The node on which a run takes place. `State.run` must be running."""

    host: Host
    state: State
    peer: PeerId
    parcels: Parcels
    guard: Guard = field(default_factory=Guard)


@dataclass(frozen=True, slots=True, eq=False)
class StartState:
    """A state from which a trainer continues. `step` is the id of the step that led to it.

    `residual` is what its own updates have lost so far, in a checkpoint of a codec with feedback.
    """

    step: str
    state: OuterState
    residual: Vector | None = None

    @property
    def values(self) -> Vector:
        """The values, which must not be changed."""
        return self.state.values

    @property
    def round(self) -> int:
        """The number of outer steps so far."""
        return self.state.round

    def encode(self) -> bytes:
        """Return a checkpoint, from which a later process continues."""
        parts: list[bytes | memoryview] = [bytes.fromhex(self.step), *self.state.parts()]
        if self.residual is not None:
            parts.append(self.residual.astype("<f4", copy=False).data.cast("B"))
        return b"".join(parts)


def first_base(terms: RunTerms, values: Vector) -> StartState:
    """Return what all peers of a run start from. Raises AveragingError `wrong-shape`."""
    if values.shape != (terms.values,) or values.dtype != np.float32:
        raise AveragingError("wrong-shape", f"expected {terms.values} float32 to start from")
    return StartState(genesis(terms.id), first_state(values, terms.rule))


def decode_base(terms: RunTerms, data: bytes) -> StartState:
    """Decode a checkpoint of this node. Raises BadUpdate if it is damaged or of another run's
    shape."""
    lost = 4 * terms.values if terms.codec.feeds_back else 0
    if len(data) < _STEP_BYTES + lost:
        raise BadUpdate("wrong-size", "a checkpoint of averaging is cut off")
    end = len(data) - lost
    state = decode_state(data[_STEP_BYTES:end], terms.values, terms.rule)
    residual = np.frombuffer(data, "<f4", offset=end).astype(np.float32) if lost else None
    if residual is not None and not np.isfinite(residual).all():
        raise BadUpdate("not-finite", "a checkpoint has values that are not finite")
    return StartState(data[:_STEP_BYTES].hex(), state, residual)


class Averager:
    """A run on one node."""

    def __init__(
        self,
        node: AveragingNode,
        terms: RunTerms,
        start: Vector | StartState,
        judge: Judge | None = None,
    ) -> None:
        """`start` are the values before the first step, equal at all peers, or the last `base` of
        an earlier process. Without a judge, updates are accepted by form and norm alone."""
        base = start if isinstance(start, StartState) else first_base(terms, start)
        self.terms = terms
        self._node = node
        self._judge = judge
        self.rounds = Rounds(terms, node.peer, base.state, base.step)
        self._feedback = Feedback(terms.codec, terms.values, base.residual)
        self._base = base
        self._read: dict[tuple[PeerId, str], TuningFact] = {}
        # This peer's update that no step has yet.
        self._sent: tuple[str, bytes | memoryview] | None = None
        self._memory = SpareMemory()
        self._poke = trio.Event()
        self._moved = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._judging = trio.Lock()
        self._before: tuple[OuterState, Known | None, float] | None = None
        self._places: dict[str, int] = {}  # by key of a signature: the round that it is about

    # For the trainer.

    @property
    def base(self) -> StartState:
        """The state from which training continues."""
        return self._base

    def checkpoint(self, base: StartState) -> bytes:
        """Return a checkpoint at a state, from which a later process continues. Takes long."""
        residual = self._feedback.residual if self.terms.codec.feeds_back else None
        return replace(base, residual=residual).encode()

    def is_overtaken(self, base: StartState) -> bool:
        """Return whether this node continues from another state, because the others have gone on
        without waiting or because it had a wrong one. No round would apply an update on `base`."""
        return self._base is not base

    def seconds_left(self) -> float | None:
        """Return how many seconds remain until the round closes without this peer, or None if no
        other peer has delivered yet."""
        closing = self.rounds.closes_at()
        return None if closing is None else max(0.0, closing - self._node.host.now())

    async def exchange(self, base: StartState, values: Vector, tokens: int) -> StartState:
        """Deliver the values after the inner steps from `base`, which took `tokens` tokens.

        Returns the state after the round.
        Returns the current state at once if the others have gone on already; with error feedback,
        the work is then part of the next update. Raises BadUpdate if the values are not finite or
        too large: the learning rate is probably too high.
        """
        if values.shape != base.values.shape:
            raise BadUpdate("wrong-shape", f"expected {self.terms.values} values")
        data = await self._node.host.offload(self._encoded, base.values, values)
        known = await self._node.host.offload(self._decoded, data)
        root = await self._node.parcels.put(self.terms.id, data)
        if self.is_overtaken(base):
            await self._node.host.offload(self._feedback.lost, data)
            return self._base
        self._sent = root, data
        offer = self.rounds.contributed(root, known, tokens, self._node.host.now())
        self._set("offer", fact_of_offer(offer))
        self._wake()
        while not self.is_overtaken(base):
            moved = self._moved
            await moved.wait()
        return self._base

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take part in the run until cancelled. Then this node's facts about it are deleted."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                watch = self._node.state.views.tunings.watch()
                self._set("here", {})
                if self._base.round:
                    self._start(self._node.peer, self._hash_state, self._base)
                for author in self._node.state.views.tunings.authors(self.terms.id):
                    self._hear(author)
                nursery.start_soon(self._drive)
                task_status.started()
                async for change in watch:
                    if change.subject is None:
                        for author in self._node.state.views.tunings.authors(self.terms.id):
                            self._hear(author)
                    elif change.subject[0] == self.terms.id:
                        self._hear(change.subject[1])
        finally:
            self._leave()

    # Facts.

    def _hear(self, author: PeerId) -> None:
        """Process the new facts of an author."""
        if author == self._node.peer:
            return
        facts = self._node.state.views.tunings.get((self.terms.id, author)) or {}
        with self._node.guard.around(author):
            for key, fact in facts.items():
                if self._read.get((author, key)) is not fact:
                    self._read[author, key] = fact
                    self._take(author, fact)
        for author_key in [each for each in self._read if each[0] == author]:
            if author_key[1] not in facts:
                del self._read[author_key]
                if author_key[1] == "here":
                    self.rounds.left(author)
        self._wake()

    def _take(self, author: PeerId, fact: TuningFact) -> None:
        now = self._node.host.now()
        if isinstance(fact, HereFact):
            self.rounds.here(author)
        elif isinstance(fact, OfferFact):
            self.rounds.offered(author, offer_of(fact), now)
        elif isinstance(fact, StateFact):
            self.rounds.stated(author, fact.step, fact.root)
        else:
            with suppress(BadUpdate):
                self.rounds.signed(author, step_of_fact(self.terms.id, fact))

    def _set(self, key: str, value: Mapping[str, object] | None) -> None:
        """Set a fact of this node. A full feed is reported by the state, and delays the round."""
        with suppress(FeedFull):
            self._node.state.set(TUNING, f"{self.terms.id}/{key}", value)

    def _leave(self) -> None:
        keys = list(self._node.state.keys(TUNING))
        for key in keys:
            if key.startswith(self.terms.id):
                self._set(key.partition("/")[2], None)
        self._node.parcels.keep(self.terms.id, ())

    # Actions.

    def _wake(self) -> None:
        self._poke.set()

    async def _drive(self) -> None:
        """Do what is due, until cancelled."""
        assert self._nursery is not None
        while True:
            self._poke = trio.Event()
            now = self._node.host.now()
            for action in self.rounds.poll(now):
                self._begin(action)
            poke = self._poke
            with trio.move_on_after(max(self.rounds.next_poll(now) - now, 0.01)):
                await poke.wait()

    def _begin(self, action: Action) -> None:
        match action:
            case Sign():
                self._sign(action)
            case Adopted():
                self._adopt(action)
            case FetchUpdate():
                self._start(action.peers[-1], self._fetch_update, action)
            case FetchState():
                self._start(action.peers[0], self._fetch_state, action)
            case JudgeUpdate():
                self._start(action.peer, self._judge_update, action)
            case ComputeState():
                self._start(self._node.peer, self._compute, action)

    def _start(self, peer: PeerId, work: Callable[[T], Awaitable[None]], action: T) -> None:
        """Begin a task that handles what a peer has written, and poll when it is done."""

        async def done() -> None:
            await work(action)
            self._wake()

        assert self._nursery is not None
        self._node.guard.start(self._nursery, peer, done)

    def _sign(self, action: Sign) -> None:
        """Publish a signature in a free place, replacing one of an old round."""
        for key in places(action.step):
            if self._places.get(key) != action.step.round:
                self._places[key] = action.step.round
                self._set(key, fact_of_step(action.step))
                return

    def _adopt(self, action: Adopted) -> None:
        self._base = StartState(action.head, action.state)
        if self._sent is not None and not action.included:
            self._start(self._node.peer, self._take_back, self._sent[1])
        self._sent = None
        if not self.rounds.root:
            self._start(self._node.peer, self._hash_state, self._base)
        live = self.rounds.live_roots() | set(self.rounds.computed_states)
        self._node.parcels.keep(self.terms.id, live)
        moved, self._moved = self._moved, trio.Event()
        moved.set()
        self._wake()  # the others may be further already

    async def _take_back(self, data: bytes | memoryview) -> None:
        """Make an update that no step contains part of the next one."""
        await self._node.host.offload(self._feedback.lost, data)

    async def _fetch_update(self, action: FetchUpdate) -> None:
        size = self.terms.update_bytes
        try:
            data = await self._get(action, Size(size, size))
            known = await self._node.host.offload(self._decoded, data)
        except BadUpdate as error:
            self.rounds.refused(action.root, error)
        except AveragingError:
            self.rounds.unfetched(action.root, self._node.host.now())
        else:
            self.rounds.decoded(action.root, known)

    async def _fetch_state(self, action: FetchState) -> None:
        size, values, rule = self.terms.state_bytes, self.terms.values, self.terms.rule
        try:
            data = await self._get(action, Size(1, size))
            state = await self._node.host.offload(decode_state, data, values, rule)
            self.rounds.restored(action.step, state, action.root)
            self._state_root(action.step.id, action.root)
        except AveragingError:
            self.rounds.unfetched(action.root, self._node.host.now())

    async def _get(self, action: FetchUpdate | FetchState, size: Size) -> memoryview:
        return await self._node.parcels.get(self.terms.id, action.root, size, action.peers)

    async def _judge_update(self, action: JudgeUpdate) -> None:
        """Compare the held-out losses. An update that cannot be judged now is judged later."""
        if self._judge is None:
            self.rounds.judged(action.root, good=True)
            return
        try:
            async with self._judging:
                before = await self._loss_before(self._judge, action)
                after = await self._judge.loss(await self._node.host.offload(action.with_it))
        except ShoalError:
            self.rounds.unjudged(action.root, self._node.host.now())
        else:
            self.rounds.judged(action.root, good=action.is_harmless(before, after))

    async def _loss_before(self, judge: Judge, action: JudgeUpdate) -> float:
        """Return the held-out loss to which that of an update is compared. It is computed once for
        all updates of a round."""
        compared = self._before
        if compared is None or compared[0] is not action.state or compared[1] is not action.own:
            values = await self._node.host.offload(action.without)
            self._before = compared = action.state, action.own, await judge.loss(values)
        return compared[2]

    async def _compute(self, action: ComputeState) -> None:
        state = await self._node.host.offload(action.run, self.terms, self._memory)
        self.rounds.computed(action.step, state)

    async def _hash_state(self, base: StartState) -> None:
        """Hold the checkpoint of a state for peers that join, and publish its root.

        The round does not wait for this, because what a step consists of determines the state.
        """
        if self._base is base:
            root = await self._node.parcels.put(self.terms.id, *base.state.parts())
            self._state_root(base.step, root)

    def _state_root(self, step: str, root: str) -> None:
        """Publish the root of the state after a step, unless this node has gone on since."""
        if step == self.rounds.head:
            self.rounds.stated(self._node.peer, step, root)
            self._set("state", state_fact(StateFact(step, root)))

    def _encoded(self, base: Vector, values: Vector) -> bytes | memoryview:
        """Encode this node's update. Takes long."""
        if self.terms.codec.name == "float32":
            return encode_difference(base, values, self._memory)
        update = self._memory.vector(base.size)
        return self._feedback.encode(np.subtract(base, values, out=update))

    def _decoded(self, data: bytes | memoryview) -> Known:
        """Decode an update, and keep a sparse one as its bytes. Takes long."""
        vector = decode(self.terms.codec, self.terms.values, data)
        norm = norm_of(vector)
        if self.terms.trims:
            return Known(vector, norm)
        # Decoded, a sparse update has the size of the model, and peers may deliver dozens of them.
        return Known(partial(decode, self.terms.codec, self.terms.values, data), norm)
