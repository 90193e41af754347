"""What all links of one node share."""

from dataclasses import dataclass, field

from ..guard import Guard
from ..host.seam import Host
from ..lane.shaper import Shaper
from ..limits import Limits
from ..rates import MemoryBudget
from .serving import Handlers


@dataclass(frozen=True, slots=True)
class Shared:
    """The host, limits, handlers and budgets of all links of a node. `shaper` holds the owner's
    bandwidth caps; None means none."""

    host: Host
    limits: Limits
    budget: MemoryBudget
    guard: Guard = field(default_factory=Guard)
    handlers: Handlers = field(default_factory=Handlers)
    shaper: Shaper | None = None
