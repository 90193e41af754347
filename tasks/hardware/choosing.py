"""Chooses the devices that the engines compute on."""

from collections.abc import Sequence
from typing import Final

from .facts import Device, usable
from .signs import Signs

AUTO: Final = "auto"
_BY_ITSELF: Final = "cuda"
"""The kind of accelerator that `auto` chooses: NVIDIA's, and AMD's under ROCm."""


def choose(wanted: Sequence[str], devices: Sequence[Device]) -> tuple[list[Device], str]:
    """Return the devices to compute on, one or more, and why a wanted one is not among them, or "".

    Each of `wanted` is `auto`, a kind (`cpu`, `cuda`) or a name (`cuda:1`). A device that is named
    twice gets two engines. `devices` begin with the CPU, which is used if no other one can be.
    """
    found, missing = list[Device](), list[str]()
    for each in wanted:
        able = _able(each, devices)
        found += able
        missing += [] if able else [each]
    found = found or [devices[0]]
    if not missing:
        return found, ""
    used = ", ".join("the CPU" if device is devices[0] else f"`{device.name}`" for device in found)
    why = f"`{missing[0]}` {_why(missing[0], devices)}"
    return found, f"the engine computes on {used}, because {why}"


def _able(wanted: str, devices: Sequence[Device]) -> list[Device]:
    """Return the devices that a word stands for: all cards for `auto`, and else one."""
    able = usable(devices)
    if wanted == AUTO:
        return [device for device in able if device.kind == _BY_ITSELF] or [devices[0]]
    return [device for device in able if wanted in (device.name, device.kind)][:1]


def _why(wanted: str, devices: Sequence[Device]) -> str:
    """Return why the wanted device cannot be used, as the end of a sentence."""
    for device in devices:
        if wanted in (device.name, device.kind):
            return f"cannot be used: {device.unused}"
    unseen = [f"{each.label}: {each.unused}" for each in devices if not each.name]
    return "is no device of torch" + (f" ({unseen[0]})" if unseen else "")


def must_list(wanted: Sequence[str], signs: Signs) -> bool:
    """Return whether the choice depends on the devices that torch sees, which takes seconds to find
    out."""
    if not signs.torch or set(wanted) == {"cpu"}:
        return False
    if set(wanted) != {AUTO}:
        return True
    return not signs.torch.endswith("+cpu") and any(
        card.vendor in ("NVIDIA", "AMD") for card in signs.cards
    )
