"""The open tunings at one node's stages, and the memory that trainers use there. No I/O."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from ....transport.identity import PeerId
from ...engine.families import Architecture
from ...engine.interface import Parts
from ...engine.passes import tensor_sizes
from ...errors import SessionError
from ...usage.metering import Use
from ..defaults import (
    PASSES_PER_TUNING,
    PEER_BYTES,
    STAGE_BYTES,
    TUNINGS_OF_OTHERS,
    TUNINGS_PER_NETWORK,
    TUNINGS_PER_PEER,
)
from ..messages import TuneOpen

Name = tuple[PeerId, bytes]
"""(trainer, the name that it chose)."""


@dataclass(slots=True, eq=False)
class OpenedTuning:
    """A tuning that a trainer has opened. `engine_id` is its name in the engine, and `payer` the
    peer whose work it is: the trainer, or the author of the job that the trainer does."""

    order: TuneOpen
    trainer: PeerId
    parts: Parts
    arch: Architecture
    engine_id: bytes
    use: Use
    heard: float
    payer: PeerId
    sizes: list[int] = field(init=False)  # values of each tensor
    digest: bytes = b""  # of the tensors that the engine has
    passes: int = 0  # that are read or computed
    setting: bool = False  # whether tensors arrive
    ended: str = ""  # why it was closed, a code

    def __post_init__(self) -> None:
        self.sizes = tensor_sizes(self.order.terms, self.arch, self.parts)

    @property
    def name(self) -> Name:
        return self.trainer, self.order.tuning

    @property
    def tensor_bytes(self) -> int:
        """Bytes of the tensors."""
        return 4 * sum(self.sizes)

    @contextmanager
    def in_pass(self) -> Iterator[None]:
        """Count one pass until the block ends. Raises SessionError `busy` if there are too many."""
        if self.passes >= PASSES_PER_TUNING:
            raise SessionError("busy", f"{PASSES_PER_TUNING} passes of the tuning are in progress")
        self.passes += 1
        try:
            yield
        finally:
            self.passes -= 1


class OpenedTunings:
    """The tunings of all trainers at the stages of the node `own`.

    `network` returns the network in which this node sees a peer.
    """

    def __init__(self, own: PeerId, network: Callable[[PeerId], str]) -> None:
        self._own = own
        self._network = network
        self._open: dict[Name, OpenedTuning] = {}
        self._opening: dict[Name, PeerId] = {}  # with their payers
        self._bytes: Counter[PeerId] = Counter()

    def __iter__(self) -> Iterator[OpenedTuning]:
        return iter(list(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def opening(self, trainer: PeerId, name: bytes, payer: PeerId) -> Iterator[None]:
        """Occupy a place for a new tuning until the block ends.

        A trainer on another node has TUNINGS_PER_PEER places, and so has a user, however many
        trainers it has. The trainers of one network have TUNINGS_PER_NETWORK places, so that many
        identities of one attacker leave some to others. Tunings that this node pays for take no
        places of others. All trainers on other nodes have twice TUNINGS_OF_OTHERS places, for any
        payer. Raises SessionError `session-exists`, or `too-many` if there is no place.
        """
        if (trainer, name) in self._open or (trainer, name) in self._opening:
            raise SessionError("session-exists", "the tuning is open already")
        payers = self._opening | {each: tuning.payer for each, tuning in self._open.items()}
        trained, paid = Counter(each for each, _ in payers), Counter(payers.values())
        others = len(payers) - paid[self._own]
        elsewhere = len(payers) - trained[self._own]  # trained by other nodes, for any payer
        is_full = trainer != self._own and (
            trained[trainer] >= TUNINGS_PER_PEER or elsewhere >= 2 * TUNINGS_OF_OTHERS
        )
        if payer != self._own:
            is_full |= paid[payer] >= TUNINGS_PER_PEER or others >= TUNINGS_OF_OTHERS
            is_full |= self._is_network_full(trainer, payers)
        if is_full:
            raise SessionError("too-many", "this stage has reached its limit of tunings")
        self._opening[trainer, name] = payer
        try:
            yield
        finally:
            del self._opening[trainer, name]

    def _is_network_full(self, trainer: PeerId, payers: Mapping[Name, PeerId]) -> bool:
        """Return whether trainers of a trainer's network have all of its places, among tunings with
        these payers."""
        if trainer == self._own:
            return False
        those = [each for (each, _), payer in payers.items() if self._own not in (each, payer)]
        network = self._network(trainer)
        return sum(self._network(each) == network for each in those) >= TUNINGS_PER_NETWORK

    def add(self, tuning: OpenedTuning) -> None:
        """Register an open tuning."""
        self._open[tuning.name] = tuning

    def find(self, trainer: PeerId, name: bytes, now: float) -> OpenedTuning:
        """Return a tuning of a trainer. Raises SessionError `unknown-session` if it is not open."""
        found = self._open.get((trainer, name))
        if found is None:
            raise SessionError("unknown-session", "no such tuning is open here")
        found.heard = now
        return found

    def remove(self, tuning: OpenedTuning, code: str) -> bool:
        """Remove a tuning. Return whether it was open."""
        tuning.ended = tuning.ended or code
        return self._open.pop(tuning.name, None) is not None

    @contextmanager
    def memory(self, trainer: PeerId, size: int) -> Iterator[None]:
        """Reserve bytes for what a trainer sends and gets until the block ends.

        Raises SessionError `busy` if it or all of them together use too much.
        """
        used = self._bytes
        if used.total() + size > STAGE_BYTES or used[trainer] + size > PEER_BYTES:
            raise SessionError("busy", "too many inputs and answers of passes are in memory here")
        used[trainer] += size
        try:
            yield
        finally:
            used[trainer] -= size
            if not used[trainer]:
                del used[trainer]
