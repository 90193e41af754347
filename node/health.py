"""Registry of named conditions that the owner of a node should know about.

A component reports a condition when it begins and clears it when it ends. `shoal status` shows
the current ones. The idea is Tailscale's `health` package.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Condition:
    """A problem: its name, one sentence, and what to do about it."""

    name: str
    sentence: str
    hint: str | None = None


class Health:
    """Current conditions. `on_change` is called for each one that begins or changes."""

    def __init__(self, on_change: Callable[[Condition], None] | None = None) -> None:
        self._conditions: dict[str, Condition] = {}
        self._on_change = on_change

    def report(self, name: str, sentence: str, *, hint: str | None = None) -> None:
        """Report that a condition holds. A repeated report replaces the sentence."""
        condition = Condition(name, sentence, hint)
        if self._conditions.get(name) == condition:
            return
        self._conditions[name] = condition
        if self._on_change is not None:
            self._on_change(condition)

    def show(self, name: str, sentence: str | None) -> None:
        """Report that a condition holds or, with None, that it has ended."""
        if sentence is None:
            self.clear(name)
        else:
            self.report(name, sentence)

    def clear(self, name: str) -> None:
        """Report that a condition has ended. Unknown names are ignored."""
        self._conditions.pop(name, None)

    def conditions(self) -> list[Condition]:
        """Return the current conditions, oldest first."""
        return list(self._conditions.values())
