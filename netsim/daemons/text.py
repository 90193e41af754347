"""The text child in this process: the same code as the real one, without its limits."""

from typing import Final

import trio

from ...tasks.defaults import TEXT_REQUEST_BYTES
from ...tasks.text.frames import FrameReader
from ..sockets.local import LocalSocket

ANSWER_S: Final = 100e-6
"""Seconds per reply: two passes through a socket, and 12 µs to encode or decode a line."""
LOAD_S: Final = 0.1
"""Seconds until a new child has loaded a model: Python and its libraries, then 2 ms."""


async def serve_text(socket: LocalSocket) -> None:
    """Answer requests until the daemon closes the socket."""
    from ...tasks.text.child import Server  # late: only requests to a model need the libraries

    server = Server()
    reader = FrameReader(TEXT_REQUEST_BYTES)
    while data := await socket.recv(65536):
        for request in reader.feed(data):
            answer = memoryview(server.answer(request))
            await trio.sleep(LOAD_S if request["op"] == "load" else ANSWER_S)
            while answer:
                answer = answer[await socket.send(answer) :]
