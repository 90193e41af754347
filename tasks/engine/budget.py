"""Memory budget for the keys and values of all sessions."""

from .errors import EngineError


class KvBudget:
    """Limit in bytes for the KV of all sessions together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reserved = 0

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes. Raises EngineError `no-memory` if they are not free."""
        if size > self.limit - self.reserved:
            raise EngineError(
                "no-memory",
                f"{size} bytes of KV are asked for, {self.limit - self.reserved} of "
                f"{self.limit} are free",
            )
        self.reserved += size

    def free(self, size: int) -> None:
        """Release `size` reserved bytes."""
        self.reserved -= size
