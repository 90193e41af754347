"""Settings of one node's state."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import defaults
from .feeds.digest import Plot


@dataclass(frozen=True, slots=True)
class StateSettings:
    """What one node stores, and where."""

    folder: Path
    """Folder of the feeds."""
    keeps: Sequence[Plot] | None = None
    """Plots (kinds and parts of feeds) of other authors that the node stores until `State.need` is
    called. None: it always stores all of them."""
    hold: float = defaults.WRITE_HOLD
    """Seconds after the start before the node's own feeds are written. It is 0 for a node with a
    new key, because no peer can have later entries of its feeds."""
