"""Divides what a peer makes this node read into steps, between which other tasks run."""

from . import defaults


class Steps:
    """Counts the values that were read. A value of a few kilobytes may take a millisecond, so
    their bytes count as well."""

    def __init__(self) -> None:
        self._values = self._bytes = 0

    def ends_with(self, value: bytes | None) -> bool:
        """Count a value (None: a deleted one). Return whether the step ends with it."""
        self._values += 1
        self._bytes += len(value or b"")
        if self._values < defaults.SHOWN_AT_ONCE and self._bytes < defaults.SHOWN_BYTES:
            return False
        self._values = self._bytes = 0
        return True
