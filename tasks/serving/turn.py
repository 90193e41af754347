"""Turns of models in one slot: which one is given to it, and how long a loaded one stays."""

from collections.abc import Awaitable, Callable, Collection

import trio

from ..defaults import SLOT_STAY, SLOT_STAY_LOADS
from ..placement.demand import ServingChoice


class SlotTurn:
    """The turn of one slot."""

    def __init__(self) -> None:
        self.asked: str | None = None
        """Root of a model that was given to the slot, until it is chosen."""
        self.loaded: trio.CancelScope | None = None
        """Ends the serving of the loaded shard. None while there is none."""
        self.unloaded = trio.Event()
        """Set when a shard that leaves is unloaded."""
        self.promised = 0
        """Bytes of the model that was given to the slot, until it is loaded or that has failed."""
        self._after: Collection[trio.Event] = ()
        self._choosing: trio.CancelScope | None = None
        self._stays_until = 0.0

    @property
    def waits(self) -> bool:
        """Whether the slot waits for a model, and none was given to it."""
        return self._choosing is not None and self.asked is None

    def give(self, root: str, after: Collection[trio.Event], need: int) -> None:
        """Have the slot take a model of `need` bytes as soon as the events in `after` are set."""
        self.asked, self._after, self.promised = root, after, need
        if self._choosing is not None:
            self._choosing.cancel()

    async def choice(self, choose: Callable[[], Awaitable[ServingChoice]]) -> ServingChoice:
        """Return the model that was given to the slot, or else the result of `choose`."""
        if self.asked is None:
            try:
                with trio.CancelScope() as self._choosing:
                    choice = await choose()
            finally:  # a slot that was cancelled takes nothing
                self._choosing = None
            if self.asked is None:
                return choice
        for event in self._after:
            await event.wait()
        root, self.asked = self.asked, None
        return ServingChoice(root, "a request asked for it", True)

    def began(self, now: float, load_s: float) -> None:
        """Record that a shard was loaded, which took `load_s` seconds.

        It stays for a multiple of that, so requests for other models do not make the node load all
        the time.
        """
        self.promised = 0
        self._stays_until = now + max(SLOT_STAY, SLOT_STAY_LOADS * load_s)

    def ended(self) -> None:
        """Record that the slot does no longer load what it had chosen. A model that was given to it
        meanwhile still comes."""
        if self.asked is None:
            self.promised = 0

    def stays_s(self, now: float) -> float:
        """Return the seconds for which the loaded shard stays."""
        return max(0.0, self._stays_until - now)
