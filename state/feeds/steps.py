"""Counter that divides the processing of many values into steps, between which other tasks run."""

from .. import defaults


class StepCounter:
    """Counter of the values of a step and of their bytes.

    Bytes count too, because a single value of a few KiB may take a millisecond.
    """

    def __init__(self) -> None:
        self._values = self._bytes = 0

    def ends_with(self, value: bytes | None) -> bool:
        """Count one value, or a deletion if `value` is None.

        Return True if the step ends with it.
        """
        self._values += 1
        self._bytes += len(value or b"")
        if self._values < defaults.SHOWN_AT_ONCE and self._bytes < defaults.SHOWN_BYTES:
            return False
        self._values = self._bytes = 0
        return True
