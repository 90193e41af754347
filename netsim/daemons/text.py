"""Simulated text child: the code of the real child process, which encodes and decodes text. It runs
in this process, without the limits of the real child.
"""

from typing import Final

import trio

from ...tasks.defaults import TEXT_REQUEST_BYTES
from ...tasks.text.frames import FrameReader
from ..sockets.local import LocalSocket

ANSWER_S: Final = 100e-6
"""Simulated seconds per reply: two transfers through a socket, and 12 µs to encode or decode a
line.
"""
LOAD_S: Final = 0.1
"""Simulated seconds to start a child and load a model: Python and its libraries, and 2 ms for the
model.
"""


async def serve_text(socket: LocalSocket) -> None:
    """Reply to requests until the daemon closes the socket."""
    # Imported late, because only requests to a model need its libraries.
    from ...tasks.text.child import Server

    server = Server()
    reader = FrameReader(TEXT_REQUEST_BYTES)
    while data := await socket.recv(65536):
        for request in reader.feed(data):
            answer = memoryview(server.answer(request))
            await trio.sleep(LOAD_S if request["op"] == "load" else ANSWER_S)
            while answer:
                answer = answer[await socket.send(answer) :]
