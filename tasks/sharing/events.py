"""Parser of server-sent events, which carry an engine's streamed answer. No I/O."""

from . import defaults
from .errors import EngineFailed

_DATA = b"data:"


class EventParser:
    """Parser that takes bytes in any pieces and returns the data of complete events.

    An event may have EVENT_BYTES. Fields other than `data`, and comments, are dropped.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data = list[bytes]()
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of the events that `piece` completes. Raises EngineFailed if an event is
        too large."""
        found = list[bytes]()
        *lines, rest = piece.split(b"\n")
        for line in lines:
            whole = bytes(self._line) + line
            self._line.clear()
            self._add(whole.removesuffix(b"\r"), found)
        self._line += rest
        if len(self._line) > defaults.EVENT_BYTES:
            raise _too_large()
        return found

    def _add(self, line: bytes, found: list[bytes]) -> None:
        if not line:
            if self._data:
                found.append(b"\n".join(self._data))
            self._data, self._size = [], 0
        elif line.startswith(_DATA):
            data = line.removeprefix(_DATA).removeprefix(b" ")
            self._size += len(data) + 1
            if self._size > defaults.EVENT_BYTES:
                raise _too_large()
            self._data.append(data)


def _too_large() -> EngineFailed:
    return EngineFailed("bad-engine", f"the engine sent an event over {defaults.EVENT_BYTES} bytes")
