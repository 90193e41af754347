"""Messages of `kv.part`. Spec: docs/spec/kv.md. No I/O."""

from typing import Annotated

from msgspec import Meta
from msgspec.structs import astuple

from ...transport.message import Message
from ..engine.interface import KvForm, KvRange
from .naming import CHUNK, PROOF_BYTES

TAG_BYTES = 32


class AskPart(Message, frozen=True):
    """Header of `kv.part`: a part of the chunk with this tag. `proof` shows that the asker knows
    the chunk's name."""

    tag: Annotated[bytes, Meta(min_length=TAG_BYTES, max_length=TAG_BYTES)]
    proof: Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]
    part: KvRange
    form: KvForm

    def header(self) -> dict[str, object]:
        """Return the fields as the header of a call."""
        return self.fields() | {"part": astuple(self.part)}

    def check(self) -> None:
        """Raise ValueError if the part is empty or not within one chunk."""
        self.part.check()
        if self.part.start // CHUNK != (self.part.stop - 1) // CHUNK:
            raise ValueError("`part` is not within one chunk")


class PartSent(Message, frozen=True):
    """Header of the reply, whose payload is the part."""

    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]
