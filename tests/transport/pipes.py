"""Helpers that read and write any byte stream to the end."""

from shoal.transport.bytestream import ByteStream


async def write(byte_stream: ByteStream, data: bytes) -> None:
    """Write all data. Raises the errors of the byte stream."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[byte_stream.write_ready(rest) :]
        except BlockingIOError:
            await byte_stream.wait_writable()


async def receive(byte_stream: ByteStream, size: int = 1 << 16) -> bytes:
    """Return the next bytes, b"" at the end."""
    while True:
        await byte_stream.wait_readable()
        try:
            return byte_stream.read_ready(size)
        except BlockingIOError:
            continue


async def read(byte_stream: ByteStream, size: int) -> bytes:
    """Return `size` bytes, or fewer at the end."""
    data = bytearray()
    while len(data) < size and (part := await receive(byte_stream, size - len(data))):
        data += part
    return bytes(data)
