"""Objects that all links of one node share."""

from dataclasses import dataclass, field

from ..guard import Guard
from ..host.seam import Host
from ..lane.shaper import Shaper
from ..limits import Limits
from ..rates import MemoryBudget
from .serving import Handlers


@dataclass(frozen=True, slots=True)
class Shared:
    """Objects that all links of one node share: the host, the limits, the handlers and the budgets.

    `shaper` enforces the owner's bandwidth caps; None if there are none.
    """

    host: Host
    limits: Limits
    budget: MemoryBudget
    guard: Guard = field(default_factory=Guard)
    handlers: Handlers = field(default_factory=Handlers)
    shaper: Shaper | None = None
