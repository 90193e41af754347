"""The bytes that all links of a node hold together."""

from typing import Protocol


class Holder(Protocol):
    """A link, to the budget."""

    def close(self, code: str) -> None: ...


class Budget:
    """Bytes held for all links. Over the limit, the link that holds most ends."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_link: dict[Holder, int] = {}
        self._used = 0

    def set(self, link: Holder, held: int) -> None:
        """What a link holds now, in bytes."""
        self._used += held - self._by_link.get(link, 0)
        self._by_link[link] = held
        if self._used > self._limit:
            most = max(self._by_link, key=self._by_link.__getitem__)
            self.drop(most)
            most.close("overloaded")

    def drop(self, link: Holder) -> None:
        """The link has ended."""
        self._used -= self._by_link.pop(link, 0)
