"""Reading and writing a `Pipe` to the end, whatever it goes over."""

from shoal.transport.pipe import Pipe


async def write(pipe: Pipe, data: bytes) -> None:
    """All of it. Raises what the pipe does."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[pipe.write_ready(rest) :]
        except BlockingIOError:
            await pipe.wait_writable()


async def receive(pipe: Pipe, size: int = 1 << 16) -> bytes:
    """What comes next, b"" at the end."""
    while True:
        await pipe.wait_readable()
        try:
            return pipe.read_ready(size)
        except BlockingIOError:
            continue


async def read(pipe: Pipe, size: int) -> bytes:
    """So many bytes, or fewer at the end."""
    data = bytearray()
    while len(data) < size and (part := await receive(pipe, size - len(data))):
        data += part
    return bytes(data)
