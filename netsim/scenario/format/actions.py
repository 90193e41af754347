"""Actions of a `[[step]]`: one dataclass for each action, and `ACTIONS`, which maps names to them.

The docstrings of these classes are the descriptions in docs/spec/scenario.md.
"""

# ruff: noqa: RUF009  `knob` makes a field, as `dataclasses.field` does

from dataclasses import dataclass
from typing import Final

from . import units
from .source import knob

Names = tuple[str, ...]  # words for hosts, as in the file: a host, a group or `all`


@dataclass(frozen=True, slots=True)
class Partition:
    """Drop all packets between the groups. Hosts that are in no group still reach all hosts."""

    groups: tuple[Names, ...] = knob(units.groups, says="the groups that stay together")
    oneway: bool = knob(units.switch, False, says="only the first group's packets are lost")


@dataclass(frozen=True, slots=True)
class Heal:
    """End every partition, loss, delay and clog."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Drop packets in one direction at random."""

    origins: Names = knob(units.names, key="from", says="the senders")
    receivers: Names = knob(units.names, key="to", says="the receivers of what is lost")
    share: float = knob(units.share, says="of the packets")


@dataclass(frozen=True, slots=True)
class Delay:
    """Delay packets in one direction."""

    origins: Names = knob(units.names, key="from", says="the senders")
    receivers: Names = knob(units.names, key="to", says="the receivers")
    by: float = knob(units.period, says="so much")


@dataclass(frozen=True, slots=True)
class Clog:
    """Hold back all packets that these hosts send or would receive, and deliver them at the end."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class Swizzle:
    """Clog a random subset of the hosts, one after the other, and unclog them in another order."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class Crash:
    """Cut the power: the programs end without sending anything."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class Restart:
    """Switch the power on, with the same disk. A host that is running is crashed first."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class Sleep:
    """Suspend hosts, as when a laptop is closed: they run nothing and receive nothing."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class WakeHosts:
    """Wake suspended hosts."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class Clock:
    """Set the wall clock forward or back."""

    target: Names = knob(units.names, says="the hosts")
    step: float = knob(units.span, says="seconds forward; negative is back")


@dataclass(frozen=True, slots=True)
class Drift:
    """Make the wall clock run fast or slow from now on."""

    target: Names = knob(units.names, says="the hosts")
    rate: float = knob(units.number, says="seconds gained in a second; negative is slow")


@dataclass(frozen=True, slots=True)
class NatReboot:
    """Make a gateway forget all its mappings, as when it restarts."""

    target: Names = knob(units.names, says="the gateways")


@dataclass(frozen=True, slots=True)
class Redial:
    """Give a gateway another public address."""

    target: Names = knob(units.names, says="the gateways")


@dataclass(frozen=True, slots=True)
class LinkDown:
    """Disconnect hosts, or gateways on their outer side."""

    target: Names = knob(units.names, says="the hosts or [[nat]]s")


@dataclass(frozen=True, slots=True)
class LinkUp:
    """Reconnect hosts, or gateways on their outer side."""

    target: Names = knob(units.names, says="the hosts or [[nat]]s")


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut one direction of a link."""

    target: Names = knob(units.names, says="the hosts or [[nat]]s")
    way: str = knob(units.text, says="`up`: packets that they send; `down`: packets to them",
                    known=lambda: ("up", "down"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class DiskFull:
    """Fill the disk of a daemon's host, so that writes fail (ENOSPC)."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class DiskReadOnly:
    """Make the disk of a daemon's host read-only (EROFS)."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class DiskLostSyncs:
    """Make the disk of a daemon's host only pretend to sync, so that a crash loses the writes."""

    target: Names = knob(units.names, says="the hosts")


@dataclass(frozen=True, slots=True)
class MakeText:
    """Make a daemon generate text."""

    target: Names = knob(units.names, says="the daemons, one after the other")
    prompt: str = knob(units.text, "In the beginning", says="what to continue")
    tokens: int = knob(units.positive, 16, says="how many tokens")
    model: str = knob(units.text, "tiny", says="of which model")


Action = (
    Partition | Heal | Loss | Delay | Clog | Swizzle | Crash | Restart | Sleep | WakeHosts | Clock
    | Drift | NatReboot | Redial | LinkDown | LinkUp | Cut | DiskFull | DiskReadOnly
    | DiskLostSyncs | MakeText
)  # fmt: skip
ACTIONS: Final[dict[str, type[Action]]] = {
    "partition": Partition, "loss": Loss, "delay": Delay, "clog": Clog, "swizzle": Swizzle,
    "heal": Heal, "crash": Crash, "restart": Restart, "sleep": Sleep, "resume": WakeHosts,
    "clock": Clock, "drift": Drift, "nat.reboot": NatReboot, "redial": Redial,
    "link.down": LinkDown, "link.up": LinkUp, "cut": Cut,
    "disk.full": DiskFull, "disk.read-only": DiskReadOnly, "disk.lost-syncs": DiskLostSyncs,
    "generate": MakeText,
}  # fmt: skip
GATEWAYS: Final = (NatReboot, Redial)  # actions whose targets are gateways
PLUGS: Final = (LinkDown, LinkUp, Cut)  # actions whose targets are hosts or gateways
OF_DAEMONS: Final = (DiskFull, DiskReadOnly, DiskLostSyncs, MakeText)  # only on daemons' hosts
UNDO: Final = {
    "partition": "heal", "loss": "heal", "delay": "heal", "clog": "unclog", "swizzle": "unclog",
    "crash": "restart", "sleep": "resume", "link.down": "link.up", "cut": "mend",
    "disk.full": "disk.mend", "disk.read-only": "disk.mend", "disk.lost-syncs": "disk.mend",
}  # fmt: skip
"""Name of the action that ends each action with a `for`. Actions that are not listed cannot have a
`for`.
"""
NEEDS_FOR: Final = (Clog, Swizzle)  # actions that are refused without a `for`


def targets_of(action: Action) -> Names:
    """Return the words of an action's `target`; an empty tuple if the action has no `target`."""
    found: Names = getattr(action, "target", ())
    return found
