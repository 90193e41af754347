"""Frames from the converting process to the daemon: 4 bytes of length, then a msgpack map.

The daemon checks them like those of a peer, because the process reads untrusted files.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta

from ...transport.message import Message, Natural, check_text, pack

FRAME_BYTES: Final = 1 << 16
TOKEN: Final = "SHOAL_HUB_TOKEN"
"""Environment variable that holds the token for a hub. A command line could be read by others."""
IMPORTED: Final = b"\1"
"""Byte that the daemon sends after it has imported the model. A download may then be removed."""
NOTES: Final = 64  # lines about what was converted
_Text = Annotated[str, Meta(max_length=4096)]


class ConversionProgress(Message, frozen=True):
    """How far the work is. `kind` is `done`, `progress` or `failed`."""

    kind: Literal["done", "progress", "failed"]
    done: Natural = 0
    total: Natural = 0
    notes: Annotated[tuple[_Text, ...], Meta(max_length=NOTES)] = ()
    name: _Text = ""
    code: Annotated[str, Meta(max_length=64)] = ""
    message: _Text = ""
    hint: _Text = ""

    def check(self) -> None:
        for text in (*self.notes, self.name, self.code, self.message, self.hint):
            check_text(text, 4 * 4096)


def framed(message: ConversionProgress) -> bytes:
    """Return a message with its length in front."""
    data = pack(message)
    return len(data).to_bytes(4) + data
