"""Budget for the bytes that all links of a node hold in memory together."""

from typing import Protocol


class Holder(Protocol):
    """A link, as far as the budget needs it."""

    def close(self, code: str) -> None: ...


class Budget:
    """Memory budget of all links. Above the limit, the link that holds most is closed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_link: dict[Holder, int] = {}
        self._used = 0

    def set(self, link: Holder, held: int) -> None:
        """Record how many bytes a link holds now."""
        self._used += held - self._by_link.get(link, 0)
        self._by_link[link] = held
        if self._used > self._limit:
            most = max(self._by_link, key=self._by_link.__getitem__)
            self.drop(most)
            most.close("overloaded")

    def drop(self, link: Holder) -> None:
        """Forget a link that has ended."""
        self._used -= self._by_link.pop(link, 0)
