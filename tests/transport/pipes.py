"""Helpers that read and write any byte stream to the end."""

from shoal.transport.bytestream import ByteStream


async def write(pipe: ByteStream, data: bytes) -> None:
    """Write all data. Raises the errors of the byte stream."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[pipe.write_ready(rest) :]
        except BlockingIOError:
            await pipe.wait_writable()


async def receive(pipe: ByteStream, size: int = 1 << 16) -> bytes:
    """Return the next bytes, b"" at the end."""
    while True:
        await pipe.wait_readable()
        try:
            return pipe.read_ready(size)
        except BlockingIOError:
            continue


async def read(pipe: ByteStream, size: int) -> bytes:
    """Return `size` bytes, or fewer at the end."""
    data = bytearray()
    while len(data) < size and (part := await receive(pipe, size - len(data))):
        data += part
    return bytes(data)
