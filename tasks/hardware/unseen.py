"""Explains why torch does not see a graphics card that this machine has."""

from collections.abc import Iterable
from typing import Final

from .defaults import DEVICES
from .facts import Build, Device
from .signs import Card, Signs

_PAGE: Final = "https://pytorch.org/get-started/locally shows the command that installs it"
_KIND: Final = {"NVIDIA": "cuda", "AMD": "cuda", "Intel": "xpu"}  # torch's name for their devices
NO_TORCH: Final = "torch is not installed"
TORCH_HINT: Final = "`pip install torch==2.13.0`, then start the node again"


def unseen(signs: Signs, build: Build | None, seen: Iterable[Device]) -> list[Device]:
    """Return the graphics cards that torch does not see, each with the reason. `seen` are the
    devices that it sees.

    `build` is None if torch could not be loaded.
    """
    kinds = {device.name.partition(":")[0] for device in seen}
    cards = [card for card in signs.cards if _KIND[card.vendor] not in kinds]
    return [_explained(card, signs, build) for card in cards[: DEVICES // 2]]


def _explained(card: Card, signs: Signs, build: Build | None) -> Device:
    unused, hint = _reason(card, signs, build)
    return Device("", card.label, unused=unused, hint=hint)


def _reason(card: Card, signs: Signs, build: Build | None) -> tuple[str, str]:
    """Return (reason why torch does not see the card, what its owner can do)."""
    if build is None:
        return (NO_TORCH, TORCH_HINT) if not signs.torch else ("torch could not be loaded", "")
    if card.vendor == "NVIDIA":
        return _nvidia(signs, build)
    if card.vendor == "AMD":
        return _other(build, "ROCm", built=bool(build.rocm))
    return _other(build, "Intel GPUs (XPU)", built=build.xpu)


def _nvidia(signs: Signs, build: Build) -> tuple[str, str]:
    if not build.cuda:
        return f"torch {build.version} was built without CUDA", f"install a build with it: {_PAGE}"
    if not signs.driver:
        return "its driver is not loaded", "install NVIDIA's driver, then restart the computer"
    if "too old" in build.error:
        return (
            f"its driver {signs.driver} is too old for CUDA {build.cuda}, which torch "
            f"{build.version} uses",
            "install a newer driver of NVIDIA, or a torch for an older CUDA",
        )
    reason = f"CUDA does not start: {build.error}" if build.error else "CUDA finds no device"
    return reason, "`nvidia-smi` shows whether the driver works"


def _other(build: Build, what: str, *, built: bool) -> tuple[str, str]:
    if not built:
        return (
            f"torch {build.version} was built without {what}",
            f"install a build with it: {_PAGE}",
        )
    return f"torch {build.version} does not see it", "check that its driver is installed"
