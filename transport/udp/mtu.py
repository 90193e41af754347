"""How large packets may be on a path: tried with packets that carry nothing (RFC 8899)."""

from typing import Any

from aioquic.quic.packet_builder import QuicDeliveryState

from . import defaults


class PacketSize:
    """The search on one path, from the largest size down. It begins anew where the path changes."""

    def __init__(self) -> None:
        self.bytes = defaults.INITIAL_BYTES
        """Bytes of UDP payload that are known to pass."""
        self._path: Any = None
        self._left: list[int] = []  # sizes to try, the next one last
        self._waiting = False

    @property
    def probe(self) -> int:
        """The size to try next."""
        return self._left[-1]

    def follow(self, path: object, sent: int) -> bool:
        """Whether to send a probe on this path now, after so many bytes."""
        if path != self._path:
            self._path = path
            self.bytes = defaults.INITIAL_BYTES
            sizes = [size for size in defaults.DATAGRAM_SIZES for _ in range(defaults.SIZE_TRIES)]
            self._left = sizes[::-1]
            self._waiting = False
        return bool(self._left) and not self._waiting and sent >= defaults.SIZE_PROBE_BYTES

    def sent(self) -> None:
        """The probe is on its way."""
        self._waiting = True

    def on_delivery(self, delivery: QuicDeliveryState, size: int) -> None:
        """What became of it."""
        if not self._waiting or not self._left or size != self._left[-1]:
            return  # of an earlier path
        self._waiting = False
        if delivery is QuicDeliveryState.ACKED:
            self.bytes = size
            self._left.clear()
        else:
            self._left.pop()

    def shrink(self) -> None:
        """Nothing passes any more: it may be the size."""
        self.bytes = defaults.INITIAL_BYTES
        self._left.clear()
