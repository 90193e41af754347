"""Max-min fair shares of a limited resource, such as storage or slots.

When the resource is full, the user with the largest share gives up a part (Bertsekas and Gallager,
"Data Networks", 1992, section 6.5.2). Among n users, a share of at most one n-th is never reduced,
because the largest share is larger. So a user that appears under g names among h others gets at
most g/(g + h) of what the others want. Sans-I/O.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping


class Shares:
    """Amount that each user has, by name; users without any are not stored."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._order: list[tuple[int, str]] = []

    def __getitem__(self, name: str) -> int:
        return self._sizes.get(name, 0)

    def __len__(self) -> int:
        return len(self._sizes)

    def total(self) -> int:
        """Return the sum of all amounts."""
        return sum(self._sizes.values())

    def change(self, name: str, amount: int) -> None:
        """Add `amount` (which may be negative) to a user's share."""
        before = self._sizes.pop(name, 0)
        if before:
            del self._order[bisect_left(self._order, (before, name))]
        if before + amount:
            self._sizes[name] = before + amount
            insort(self._order, (before + amount, name))

    def largest(self, newcomer: str, changes: Mapping[str, int]) -> str:
        """Return the user with the largest share after `changes` are added.

        Ties evict the newcomer, so it never displaces a share that is no larger than its own.
        """
        changed = [
            (self[name] + amount, name == newcomer, name) for name, amount in changes.items()
        ]
        others = (
            (size, name == newcomer, name)
            for size, name in reversed(self._order)
            if name not in changes
        )
        return max([*changed, *(one for one in [next(others, None)] if one is not None)])[2]
