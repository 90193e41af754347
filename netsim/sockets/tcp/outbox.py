"""Unsent data of a connection, in the pieces in which it was written."""


class SendBuffer:
    """Queue of the unsent bytes of one connection."""

    __slots__ = ("_chunks", "_offset", "size")

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._offset = 0  # number of bytes already removed from the first chunk
        self.size = 0

    def add(self, data: bytes, mss: int) -> None:
        """Append data. Small writes are joined up to the size of a segment, `mss` bytes."""
        chunks = self._chunks
        if len(chunks) > 1 and len(chunks[-1]) < mss:
            chunks[-1] += data
        else:
            chunks.append(data)
        self.size += len(data)

    def cut(self, size: int) -> bytes:
        """Remove and return the first `size` bytes. The queue must have that many."""
        chunks, offset = self._chunks, self._offset
        chunk = chunks[0]
        self.size -= size
        left = len(chunk) - offset - size
        if left > 0:
            self._offset = offset + size
            return chunk[offset : offset + size]
        if left == 0:
            del chunks[0]
            self._offset = 0
            return chunk[offset:] if offset else chunk
        return self._gather(size)

    def _gather(self, size: int) -> bytes:
        """Remove and return the first `size` bytes, which span more than one chunk."""
        parts = [self._chunks[0][self._offset :]]
        rest, whole = size - len(parts[0]), 1
        while rest >= len(self._chunks[whole]):
            parts.append(self._chunks[whole])
            rest -= len(self._chunks[whole])
            whole += 1
            if not rest:
                break
        if rest:
            parts.append(self._chunks[whole][:rest])
        del self._chunks[:whole]
        self._offset = rest
        return b"".join(parts)

    def drop(self) -> None:
        """Delete all data, because nothing more is sent."""
        self._chunks = []
        self._offset = self.size = 0
