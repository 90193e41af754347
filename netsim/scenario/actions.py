"""What a `[[step]]` can do: one dataclass for each action, by its name in the file."""

# ruff: noqa: RUF009  `knob` makes a field, as `dataclasses.field` does

from dataclasses import dataclass
from typing import Final

from . import units
from .source import knob

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """No packet passes between the groups; hosts in no group talk with everybody."""

    groups: tuple[Names, ...] = knob(units.groups, says="who stays together")
    oneway: bool = knob(units.switch, False, says="only the first group's packets are lost")


@dataclass(frozen=True, slots=True)
class Heal:
    """End every partition, loss, delay and clog."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Packets from the ones to the others are lost by chance, in this direction."""

    origins: Names = knob(units.names, key="from", says="who sends")
    receivers: Names = knob(units.names, key="to", says="who would receive")
    share: float = knob(units.share, says="of the packets")


@dataclass(frozen=True, slots=True)
class Delay:
    """Packets from the ones to the others take longer, in this direction."""

    origins: Names = knob(units.names, key="from", says="who sends")
    receivers: Names = knob(units.names, key="to", says="who receives")
    by: float = knob(units.period, says="so much")


@dataclass(frozen=True, slots=True)
class Clog:
    """What these hosts send or would receive is held back, and then all arrives."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class Swizzle:
    """A random part of the hosts is clogged one after the other, and freed in another order."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class Crash:
    """Power off, with no goodbye."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class Restart:
    """Power on again, with the same disk; a host that runs is crashed first."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class Sleep:
    """Close the lid: nothing runs, nothing is received."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class Resume:
    """Open the lid again."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class Clock:
    """Set the wall clock forward or back."""

    target: Names = knob(units.names, says="the hosts")
    step: float = knob(units.span, says="by so much; negative is back")


@dataclass(frozen=True, slots=True)
class Drift:
    """The wall clock runs fast, or slow, from now on."""

    target: Names = knob(units.names, says="the hosts")
    rate: float = knob(units.number, says="seconds gained in a second; negative is slow")


@dataclass(frozen=True, slots=True)
class NatReboot:
    """A gateway forgets every mapping."""

    target: Names = knob(units.names, says="the gateways")


@dataclass(frozen=True, slots=True)
class Redial:
    """A gateway comes back with another public address."""

    target: Names = knob(units.names, says="the gateways")


@dataclass(frozen=True, slots=True)
class LinkDown:
    """Pull the cable; of a gateway, the one to the outside."""

    target: Names = knob(units.names, says="the hosts or [[nat]]s")


@dataclass(frozen=True, slots=True)
class LinkUp:
    """Put the cable back."""

    target: Names = knob(units.names, says="the hosts or [[nat]]s")


@dataclass(frozen=True, slots=True)
class Cut:
    """One direction of a link is dead."""

    target: Names = knob(units.names, says="the hosts or [[nat]]s")
    way: str = knob(units.text, says="`up`: what they send; `down`: what they would receive",
                    known=lambda: ("up", "down"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class DiskFull:
    """Nothing more fits on the disk of a daemon's host (ENOSPC)."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class DiskReadOnly:
    """Nothing can be written to the disk of a daemon's host (EROFS)."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class DiskLostSyncs:
    """The disk of a daemon's host says that writes are safe before they are: a crash loses them."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class Generate:
    """A daemon is asked for text."""

    target: Names = knob(units.names, says="the daemons, one after the other")
    prompt: str = knob(units.text, "In the beginning", says="what to continue")
    tokens: int = knob(units.positive, 16, says="how many tokens")
    model: str = knob(units.text, "tiny", says="of which model")


ACTIONS: Final[dict[str, type]] = {
    "partition": Partition, "loss": Loss, "delay": Delay, "clog": Clog, "swizzle": Swizzle,
    "heal": Heal, "crash": Crash, "restart": Restart, "sleep": Sleep, "resume": Resume,
    "clock": Clock, "drift": Drift, "nat.reboot": NatReboot, "redial": Redial,
    "link.down": LinkDown, "link.up": LinkUp, "cut": Cut,
    "disk.full": DiskFull, "disk.read-only": DiskReadOnly, "disk.lost-syncs": DiskLostSyncs,
    "generate": Generate,
}  # fmt: skip
GATEWAYS: Final = (NatReboot, Redial)
PLUGS: Final = (LinkDown, LinkUp, Cut)
OF_DAEMONS: Final = (DiskFull, DiskReadOnly, DiskLostSyncs, Generate)
UNDO: Final = {
    "partition": "heal", "loss": "heal", "delay": "heal", "clog": "unclog", "swizzle": "unclog",
    "crash": "restart", "sleep": "resume", "link.down": "link.up", "cut": "mend",
    "disk.full": "disk.mend", "disk.read-only": "disk.mend", "disk.lost-syncs": "disk.mend",
}  # fmt: skip
"""What `for` ends each action with; the others last."""
NEEDS_FOR: Final = (Clog, Swizzle)
