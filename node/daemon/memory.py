"""Reports the memory of this node's processes, and warns if the offered memory does not fit."""

from ...tasks.inference.models import Models
from ...transport.host.seam import MachineFigures
from ..control.messages.machine import Memory, ProcessMemory
from ..defaults import LAYER_MEMORY, PROGRAMS_MEMORY
from ..health import Condition
from .base import Base
from .telling.giving import shown_size


def memory_view(base: Base, models: Models, loaded: int) -> Memory:
    """Describe the resident memory of each process of this node, and the memory that its owner
    offers. `loaded` is how many bytes of the offered memory are in use."""
    pids = {"daemon": base.host.pid()}
    for number, engine in enumerate(base.engines):
        if engine.pid is not None:
            pids[f"engine {number + 1}" if number else "engine"] = engine.pid
    pids |= {f"text of {name}": pid for name, pid in models.processes().items()}
    processes = (
        ProcessMemory(name, pid, resident)
        for name, pid in pids.items()
        if (resident := base.host.resident(pid)) is not None
    )
    return Memory(base.capacity.memory_bytes, loaded, tuple(processes))


def check_memory(base: Base) -> None:
    """Report a condition if the owner has set the memory to less than one layer needs, or to more
    than is free."""
    asked = base.config.memory if "memory" in base.settings.given.given else None
    if asked is None or base.engine is None or {*base.hardware.chosen} != {"cpu"}:
        return  # an accelerator has memory of its own, which the engine checks
    found = memory_condition(asked, base.host.machine())
    if found is not None:
        base.health.report(found.name, found.sentence, hint=found.hint)


def memory_condition(asked: int, machine: MachineFigures) -> Condition | None:
    """Return a warning about offering `asked` bytes of memory, or None if they are fine.

    `machine` was measured before the engine started.
    """
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
        fits = free - PROGRAMS_MEMORY
        less = f"`shoal config set memory {fits >> 20}MiB`, or " if fits >= LAYER_MEMORY else ""
        return Condition(
            "memory",
            f"{shown_size(asked)} of memory is offered and {programs}, but only "
            f"{shown_size(free)} is free on this machine",
            hint=f"{less}end other programs",
        )
    return None
