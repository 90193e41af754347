"""Reports the memory of this node's processes, and warns if the offered memory does not fit."""

from typing import TYPE_CHECKING, Any

from ...transport.host.seam import Machine
from ..defaults import LAYER_MEMORY, PROGRAMS_MEMORY
from ..health import Condition
from .giving import shown_size

if TYPE_CHECKING:
    from .daemon import Node


def memory_view(node: "Node") -> dict[str, Any]:
    """Return the resident bytes of every process, and how many of the offered bytes are in use."""
    pids = {"daemon": node.host.pid()}
    if node.engine is not None and node.engine.pid is not None:
        pids["engine"] = node.engine.pid
    pids |= {f"text of {name}": pid for name, pid in node.models.processes().items()}
    return {
        "offered_bytes": node.capacity.memory_bytes,
        "loaded_bytes": node.serving.loaded_bytes,
        "processes": [
            {"name": name, "pid": pid, "resident_bytes": resident}
            for name, pid in pids.items()
            if (resident := node.host.resident(pid)) is not None
        ],
    }


def check_memory(node: "Node") -> None:
    """Warn if the memory that the owner offers is too little, or more than is free."""
    asked = node.settings.of("memory").value
    if asked is None or node.engine is None:
        return
    found = memory_condition(asked, node.host.machine())
    if found is not None:
        node.health.report(found.name, found.sentence, hint=found.hint)


def memory_condition(asked: int, machine: Machine) -> Condition | None:
    """Return a warning about the `asked` bytes of memory, or None. `machine` was measured before
    the engine started."""
    needed, free = asked + PROGRAMS_MEMORY, machine.memory_available
    programs = f"the programs take about {shown_size(PROGRAMS_MEMORY)} more"
    if asked < LAYER_MEMORY:
        return Condition(
            "memory",
            f"{shown_size(asked)} of memory is less than one layer of a model of 1 billion "
            f"parameters needs, about {shown_size(LAYER_MEMORY)}; {programs}",
            hint="`shoal config set memory 1GiB` offers more from the next start",
        )
    if needed > free:
        fits = max(free - PROGRAMS_MEMORY, 0) >> 20
        return Condition(
            "memory",
            f"{shown_size(asked)} of memory is offered and {programs}, but only "
            f"{shown_size(free)} is free on this machine",
            hint=f"`shoal config set memory {fits}MiB`, or end other programs",
        )
    return None
