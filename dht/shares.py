"""Max-min fair shares of a limited resource, such as storage or slots. No I/O.

When the resource is full, the user with the largest share gives up a part (Bertsekas and Gallager,
"Data Networks", 1992, section 6.5.2). Among n users, a share of at most one n-th is never reduced,
because another share is then larger. If one user appears under g names and there are h others, it
therefore gets at most g/(g + h) of the resource while the others want more.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping


class Shares:
    """Amounts of the resource that the users have, indexed by the user's name.

    Users with an amount of 0 are not stored.
    """

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self.order: list[tuple[int, str]] = []

    def __getitem__(self, name: str) -> int:
        """Return the amount that a user has."""
        return self._sizes.get(name, 0)

    def __len__(self) -> int:
        """Return the number of users with an amount other than 0."""
        return len(self._sizes)

    def total(self) -> int:
        """Return the sum of all amounts."""
        return sum(self._sizes.values())

    def change(self, name: str, amount: int) -> None:
        """Add `amount`, which may be negative, to the amount of a user. The caller chooses the
        unit."""
        before = self._sizes.pop(name, 0)
        if before:
            del self.order[bisect_left(self.order, (before, name))]
        if before + amount:
            self._sizes[name] = before + amount
            insort(self.order, (before + amount, name))

    def largest(self, newcomer: str, changes: Mapping[str, int]) -> str:
        """Return the user that would have the largest amount after `changes`.

        `changes` maps names to amounts to add. If several users have the largest amount, and the
        newcomer is one of them, the newcomer is returned. The newcomer therefore never takes
        anything from a user that has no more than itself.
        """
        changed = [
            (self[name] + amount, name == newcomer, name) for name, amount in changes.items()
        ]
        others = (
            (size, name == newcomer, name)
            for size, name in reversed(self.order)
            if name not in changes
        )
        return max([*changed, *(one for one in [next(others, None)] if one is not None)])[2]
