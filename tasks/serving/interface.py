"""What serving is given (device, settings, slot), and the status that it reports."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ..engine.interface import Engine
from ..inference.stage import Stage
from ..placement.coverage import LayerSizes
from ..placement.devices import joint_memory
from ..placement.shard import DTypeSetting

Phase = Literal["no-engine", "barred", "choosing", "fetching", "loading", "serving", "failed"]

NO_TORCH = "torch is not installed: this node holds no layers"


class RestartingEngine(Engine, Protocol):
    """Engine that may lose its state and restart."""

    def on_restart(self, callback: Callable[[], None]) -> None:
        """Register `callback` to be called whenever the engine has restarted and has no shard."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A device of a node: its engine, and the bytes that the node offers on it."""

    engine: RestartingEngine
    memory: int


@dataclass(frozen=True, slots=True)
class ServingDevices:
    """The devices that compute a node's shards, and the stage that runs all gateways' sessions on
    them.

    If there are none, `lacks` says why.
    """

    stage: Stage
    shares: Sequence[DeviceShare]
    lacks: str = NO_TORCH
    broken: set[int] = field(default_factory=set)
    """Indexes of devices whose engines cannot start."""


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """The owner's settings. If one is None, the node decides. `memory` is in bytes, for weights and
    KV."""

    memory: int
    model: str | None = None
    layers: tuple[int, int] | None = None
    dtype: DTypeSetting = "auto"


@dataclass(frozen=True, slots=True)
class ServingStatus:
    """Progress of a node towards serving. `root` is that of the published shard, and `why` the
    reason for the chosen model."""

    phase: Phase
    text: str
    done_bytes: int = 0  # bytes fetched so far, of `total_bytes`
    total_bytes: int = 0
    hint: str | None = None  # what the owner can do about a failure, if known
    why: str | None = None
    root: str | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for a part of one model, on one device or divided among several.

    The shard in the first slot (0) is what the owner wants, or what the swarm needs most. The
    others are for models that no other node serves.
    """

    number: int
    rooms: Callable[[], Sequence[int]]
    """Returns the bytes that the shards in the other slots leave on each device."""
    taken: Callable[[], Collection[str]]
    """Returns the roots of the models in the other slots."""

    def memory(self) -> int:
        """Return the bytes that the shards in the other slots leave on all devices together."""
        return sum(self.rooms())

    def memory_for(self, sizes: LayerSizes) -> int:
        """Return the bytes in which layers of a model can be divided among the devices."""
        return joint_memory(sizes, self.rooms())
