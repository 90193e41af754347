"""Formats the list that a node prints at its start: each resource that it offers to other nodes,
and the option that changes the amount."""

from ....dht.content.quota import LibraryLimit
from ....transport.relay.defaults import RelayLimits
from ...defaults import PROGRAMS_MEMORY
from ...settings.config import NodeConfig
from ..base import Base


def shown_size(count: int) -> str:
    """Format a number of bytes: `300 B`, `120 MiB`, `4.0 GiB`."""
    if count >= 2**30:
        return f"{count / 2**30:.1f} GiB"
    return f"{count / 2**20:.0f} MiB" if count >= 2**20 else f"{count} B"


def shown_rate(count: int) -> str:
    """Format a rate in bytes per second: `64 kB/s`, `1.5 MB/s`, `53.8 GB/s`."""
    if count >= 10**9:
        return f"{count / 10**9:.1f} GB/s"
    return f"{count / 10**6:.1f} MB/s" if count >= 10**6 else f"{count / 1000:.0f} kB/s"


def giving_lines(base: Base, allowance: LibraryLimit, relaying: RelayLimits, *, works: bool
                 ) -> list[str]:  # fmt: skip
    """Return one line for each resource that the node offers, and one line for the stored settings,
    if any.

    `works` says whether the node works on jobs of other nodes.
    """
    rows = {
        "memory": _memory(base),
        "cores": _cores(base),
        "device": _device(base),
        "disk": _disk(allowance),
        "bandwidth": _bandwidth(base.config),
        "jobs": _jobs(works, private=base.credentials.private),
        "relaying": _relaying(relaying),
        "router": _router(base.config),
    }
    lines = [f"{name:<10} {words}" for name, words in rows.items() if words]
    kept = [f"{s.key.name} {s.text} ({s.origin})" for s in base.settings.given.given.values()]
    if kept:
        lines.append(f"{'settings':<10} {', '.join(kept)}; `shoal config` changes them")
    return lines


def _memory(base: Base) -> str:
    if base.engine is None:
        return "none for layers: this node has no engine"
    size = shown_size(base.capacity.memory_bytes)
    programs = shown_size(PROGRAMS_MEMORY)
    return f"{size} for layers and answers (--memory), and about {programs} for the programs"


def _cores(base: Base) -> str:
    cores = base.capacity.cores
    return f"{base.config.threads or cores} of {cores} (--threads)"


def _device(base: Base) -> str:
    """Return the devices that the engines compute on, or "" if there is no engine."""
    if base.engine is None:
        return ""
    labels = {each.name: each.label for each in base.hardware.devices()}
    shown = (f"{name} ({labels[name]})" if labels[name] else name for name in base.hardware.chosen)
    return f"{', '.join(shown)} (--device)"


def _disk(allowance: LibraryLimit) -> str:
    limit = allowance.limit
    most = "no limit" if limit is None else f"at most {shown_size(limit)}"
    return f"{most} for models and blobs (--disk)"


def _bandwidth(config: NodeConfig) -> str:
    up, down = (
        "no limit" if rate is None else shown_rate(rate) for rate in (config.up, config.down)
    )
    return f"up {up} (--up), down {down} (--down)"


def _jobs(works: bool, *, private: bool) -> str:
    if not works:
        return "none of other nodes (--jobs)"
    whose = "members of the group" if private else "any node of the swarm"
    return f"of {whose}, while no other request waits (--no-jobs)"


def _relaying(limits: RelayLimits) -> str:
    if not limits.rate:
        return "none (--relay)"
    when = "" if limits.volunteer else " while others can reach this node"
    return f"up to {shown_rate(limits.rate)} for other nodes{when} (--relay)"


def _router(config: NodeConfig) -> str:
    asks = "asked to open a port (--no-port-mapping)"
    return asks if config.strategies.mapping else "not asked to open a port (--port-mapping)"
