"""Registry of the conditions (lasting problems) that the owner of a node should know of.

A component reports a condition when it begins, and clears it when it ends. `shoal status` shows the
current conditions. Modelled on Tailscale's `health` package.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Condition:
    """A lasting problem: its name, a sentence that describes it, and a hint for the owner. The hint
    is None if there is nothing to do."""

    name: str
    sentence: str
    hint: str | None = None


class Health:
    """The current conditions of one node. `on_change` is called with each condition that begins or
    whose text changes."""

    def __init__(self, on_change: Callable[[Condition], None] | None = None) -> None:
        self._conditions: dict[str, Condition] = {}
        self._on_change = on_change

    def report(self, name: str, sentence: str, *, hint: str | None = None) -> None:
        """Register a condition, or replace the text of the condition with this name."""
        condition = Condition(name, sentence, hint)
        if self._conditions.get(name) == condition:
            return
        self._conditions[name] = condition
        if self._on_change is not None:
            self._on_change(condition)

    def show(self, name: str, sentence: str | None) -> None:
        """Report a condition with this sentence or, if `sentence` is None, clear it."""
        if sentence is None:
            self.clear(name)
        else:
            self.report(name, sentence)

    def clear(self, name: str) -> None:
        """Remove a condition that has ended. Unknown names are ignored."""
        self._conditions.pop(name, None)

    def conditions(self) -> list[Condition]:
        """Return the current conditions, oldest first."""
        return list(self._conditions.values())
