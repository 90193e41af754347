"""Divides the reading of values from peers into steps, between which other tasks run."""

from .. import defaults


class Steps:
    """Counter of the values that were read, and of their bytes: one of a few KiB may take a
    millisecond."""

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
