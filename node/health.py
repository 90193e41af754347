"""Conditions that a user should know of, by name, each one sentence.

A component reports a condition when it begins and clears it when it ends; `shoal status`
shows those that hold. The idea is Tailscale's `health` package.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is not as it should be: its name, a sentence, what to do about it."""

    name: str
    sentence: str
    hint: str | None = None


class Health:
    """The conditions that hold now. `on_change` hears of each one that begins or changes."""

    def __init__(self, on_change: Callable[[Condition], None] | None = None) -> None:
        self._conditions: dict[str, Condition] = {}
        self._on_change = on_change

    def report(self, name: str, sentence: str, *, hint: str | None = None) -> None:
        """The condition holds; a repeated report replaces the sentence."""
        condition = Condition(name, sentence, hint)
        if self._conditions.get(name) == condition:
            return
        self._conditions[name] = condition
        if self._on_change is not None:
            self._on_change(condition)

    def clear(self, name: str) -> None:
        """The condition holds no more; unknown names are fine."""
        self._conditions.pop(name, None)

    def conditions(self) -> list[Condition]:
        """Those that hold, oldest first."""
        return list(self._conditions.values())
