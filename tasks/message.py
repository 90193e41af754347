"""Base of the messages that nodes send each other as headers: of calls, posts, streams, replies."""

from collections.abc import Mapping
from typing import Self

from ..transport.decoding import typed
from ..transport.errors import Undecodable
from ..transport.message import Message
from .errors import BadMessage


class HeaderMessage(Message, frozen=True):
    """Message that is the header of a call, post, stream or reply."""

    def header(self) -> dict[str, object]:
        """Return the fields as a header."""
        return self.fields()

    @classmethod
    def parse(cls, header: Mapping[str, object]) -> Self:
        """Decode and check an untrusted header. Raises BadMessage if it is invalid."""
        try:
            return typed(cls, header)
        except Undecodable as error:
            raise BadMessage(str(error)) from None
