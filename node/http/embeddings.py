"""Embeddings of the API: the body of a request, and the document of its answer. No I/O."""

import base64
import json
import sys
from array import array
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from msgspec import Meta

from ...tasks.inference.embedding import Embeddings, EmbedRequest, Vector
from ...transport.message import Message
from .requests import LABEL, Model, read_body_as

INPUTS: Final = 1024  # inputs of one request; each costs up to 32 KiB of memory for its vector
_SIZE: Final = 2**20
_Id = Annotated[int, Meta(ge=0, lt=2**31)]
_Ids = Annotated[list[_Id], Meta(max_length=_SIZE)]


class EmbeddingsBody(Message, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of `POST /v1/embeddings`. `input` is a text, several texts, the token ids of one text,
    or those of several."""

    model: Model
    input: str | Annotated[list[str | _Id | _Ids], Meta(min_length=1, max_length=_SIZE)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    user: Annotated[str, Meta(max_length=LABEL)] | None = None

    def check(self) -> None:
        """Raise ValueError if the inputs are of several kinds or too many."""
        if isinstance(self.input, str):
            return
        kinds = {type(each) for each in self.input}
        if len(kinds) > 1:
            raise ValueError("`input`: expected texts, token ids, or lists of token ids, not a mix")
        if int not in kinds and len(self.input) > INPUTS:
            raise ValueError(f"`input`: expected at most {INPUTS} inputs, got {len(self.input)}")

    def inputs(self) -> tuple[str | tuple[int, ...], ...]:
        """Return the inputs, each as a text or as token ids."""
        if isinstance(self.input, str):
            return (self.input,)
        ids = tuple(each for each in self.input if isinstance(each, int))
        if ids:
            return (ids,)
        return tuple(
            each if isinstance(each, str) else tuple(each)
            for each in self.input
            if not isinstance(each, int)
        )

    def for_gateway(self) -> EmbedRequest:
        """Return the request for the gateway."""
        model, _, adapter = self.model.partition("+")
        return EmbedRequest(model, self.inputs(), self.dimensions, self.user or "", adapter)

    def document(self, found: Embeddings) -> Iterator[bytes]:
        """Yield the pieces of the answer's document, one for each vector, as all of them together
        take seconds."""
        for index, vector in enumerate(found.vectors):
            value = _base64(vector) if self.encoding_format == "base64" else _numbers(vector)
            before = b", " if index else b'{"object": "list", "data": ['
            start = b'%b{"object": "embedding", "index": %d, "embedding": ' % (before, index)
            yield b"%b%b}" % (start, value)
        usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
        end = json.dumps({"model": self.model, "usage": usage})
        yield b"], " + end[1:].encode()


def read_embeddings(data: bytes | bytearray) -> EmbeddingsBody:
    """Parse the body of a request for embeddings. Raises ApiRefusal if it is invalid."""
    return read_body_as(EmbeddingsBody, data)


def _numbers(vector: Vector) -> bytes:
    """Return a vector as a list of numbers in JSON, of which float32 loses no bit."""
    return f"[{', '.join(map('{:.9g}'.format, vector))}]".encode()


def _base64(vector: Vector) -> bytes:
    """Return a vector as OpenAI's clients read it: little-endian float32 in base64."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return b'"%b"' % base64.b64encode(vector.tobytes())
