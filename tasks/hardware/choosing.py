"""Chooses the device that the engine computes on."""

from collections.abc import Sequence
from typing import Final

from .facts import Device, usable
from .signs import Signs

AUTO: Final = "auto"
_BY_ITSELF: Final = "cuda"
"""The kind of accelerator that `auto` chooses: NVIDIA's, and AMD's under ROCm."""


def choose(wanted: str, devices: Sequence[Device]) -> tuple[Device, str]:
    """Return the device to compute on, and why it is not the wanted one, or "".

    `wanted` is `auto`, a kind (`cpu`, `cuda`) or a name (`cuda:1`). `devices` begin with the CPU.
    """
    cpu, able = devices[0], usable(devices)
    if wanted == AUTO:
        cards = [device for device in able if device.kind == _BY_ITSELF]
        return max(cards, key=lambda device: device.memory_bytes, default=cpu), ""
    for device in able:
        if wanted in (device.name, device.kind):
            return device, ""
    return cpu, f"the engine computes on the CPU, because `{wanted}` {_why(wanted, devices)}"


def _why(wanted: str, devices: Sequence[Device]) -> str:
    """Return why the wanted device cannot be used, as the end of a sentence."""
    for device in devices:
        if wanted in (device.name, device.kind):
            return f"cannot be used: {device.unused}"
    unseen = [f"{each.label}: {each.unused}" for each in devices if not each.name]
    return "is no device of torch" + (f" ({unseen[0]})" if unseen else "")


def must_list(wanted: str, signs: Signs) -> bool:
    """Return whether the choice depends on the devices that torch sees, which takes seconds to find
    out."""
    if not signs.torch or wanted == "cpu":
        return False
    if wanted != AUTO:
        return True
    return not signs.torch.endswith("+cpu") and any(
        card.vendor in ("NVIDIA", "AMD") for card in signs.cards
    )
