"""Equal shares of something that there is only so much of: room, or turns.

Where it is full, whoever has most gives way (max-min fairness: Bertsekas and Gallager, "Data
Networks", 1992, section 6.5.2). Of n that have any, nobody that has at most an n-th part of it
loses anything to others: who has most has more than that. So one who appears under g names among h
others has at most g/(g + h) of what the others want. Sans-I/O.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping


class Shares:
    """How much each of many has, by name; those that have nothing are not kept."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._order: list[tuple[int, str]] = []

    def __getitem__(self, name: str) -> int:
        return self._sizes.get(name, 0)

    def __len__(self) -> int:
        return len(self._sizes)

    def total(self) -> int:
        """What all have together."""
        return sum(self._sizes.values())

    def change(self, name: str, amount: int) -> None:
        """It has so much more, or less."""
        before = self._sizes.pop(name, 0)
        if before:
            del self._order[bisect_left(self._order, (before, name))]
        if before + amount:
            self._sizes[name] = before + amount
            insort(self._order, (before + amount, name))

    def largest(self, comer: str, changes: Mapping[str, int]) -> str:
        """Who has most once these amounts are added: of equals `comer`, which thus never makes
        room by what is not more than its own."""
        changed = [(self[name] + amount, name == comer, name) for name, amount in changes.items()]
        others = (
            (size, name == comer, name)
            for size, name in reversed(self._order)
            if name not in changes
        )
        return max([*changed, *(one for one in [next(others, None)] if one is not None)])[2]
