"""Messages about the machine of a node: its devices, memory and disk."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeedView:
    """Measured speed of a device. Rates are in bytes per second (`bandwidth`) and operations per
    second. `batch` is the number of rows up to which a step takes hardly longer than with one."""

    bandwidth: float
    float32: float
    bfloat16: float
    batch: int


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device on which a node computes. `speed` is None if it is unknown."""

    name: str
    instructions: str
    memory_bytes: int
    speed: SpeedView | None


@dataclass(frozen=True, slots=True)
class CapacityView:
    """The capacity that a node publishes. `load_rate` is the rate at which its disk reads, in bytes
    per second, or None if unknown. `engine` says whether the machine can compute layers."""

    cores: int
    memory_bytes: int
    engine: bool
    load_rate: float | None
    devices: tuple[PublishedDevice, ...]


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device of this machine. `name` is torch's, or None for a graphics card that torch does not
    see. `used` says whether the engine computes on it. `unused` says why it cannot, and `hint` what
    its owner can do; both are None if it can. `speed` is None if it is unknown."""

    name: str | None
    label: str
    instructions: str
    memory_bytes: int
    used: bool
    unused: str | None
    hint: str | None
    speed: SpeedView | None


@dataclass(frozen=True, slots=True)
class KernelsView:
    """Native kernels of the CPU for one set of instructions. `unused` says why they are not in use,
    and `beside` which products torch computes beside them and why; each is None if there is
    nothing to say."""

    name: str
    unused: str | None
    beside: str | None


@dataclass(frozen=True, slots=True)
class MachineView:
    """The hardware of this node. `progress` is `measured`, `measuring`, `failed` or `off`, and
    `failure` says why it failed, or is None. `load_rate` is as in the capacity. `kernels` begin
    with those in use, and are empty until the machine is measured."""

    progress: str
    failure: str | None
    load_rate: float | None
    devices: tuple[DeviceView, ...]
    kernels: tuple[KernelsView, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Resident memory of one process, in bytes."""

    name: str
    pid: int
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that the owner offers, and how much of that is reserved for layers and KV
    caches."""

    offered_bytes: int
    loaded_bytes: int
    processes: tuple[ProcessMemory, ...]


@dataclass(frozen=True, slots=True)
class DiskView:
    """Disk use of models and blobs, and its limit, in bytes.

    `set` says whether the owner chose the limit. `limit_bytes` is None if there is no limit.
    """

    used_bytes: int
    limit_bytes: int | None
    set: bool
