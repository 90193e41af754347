"""Fingerprints of answers: what a worker says of the tokens that it has generated. No I/O.

A fingerprint has each token's id and its log-probability in steps of 1/16 nat. Another node
recomputes both in a few passes over the prompt with the answer. A text without its tokens does not
suffice, because several sequences of tokens have the same text. Spec: docs/spec/checking.md.
"""

import re
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..errors import BadOutcome

FIELD: Final = "fingerprint"
"""The field with the fingerprint in the output of a row, always the last one."""
_STEP = 16.0  # steps of a log-probability in a nat
_LEAST = 255  # steps below zero; less likely tokens count as this
_LAST_FIELD = re.compile(
    rb', "' + FIELD.encode() + rb'": "[0-9A-Za-z+/=]*"\}(?=\r?$)', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Ids of an answer's tokens, and their log-probabilities in steps below zero."""

    tokens: tuple[int, ...]
    marks: tuple[int, ...]

    def distance(self, logprobs: Sequence[float]) -> float:
        """Return the mean difference from these log-probabilities, in nats."""
        pairs = zip(self.marks, map(_mark, logprobs), strict=True)
        return sum(abs(one - other) for one, other in pairs) / _STEP / max(1, len(self.marks))


def _mark(logprob: float) -> int:
    return round(min(max(-logprob * _STEP, 0.0), float(_LEAST)))


def pack_fingerprint(tokens: Sequence[int], logprobs: Sequence[float]) -> str:
    """Encode a fingerprint as text: for each token its id in seven-bit groups, the lowest first,
    and a byte for its log-probability, all in base64."""
    data = bytearray()
    for token, logprob in zip(tokens, logprobs, strict=True):
        while token > 0x7F:
            data.append(token & 0x7F | 0x80)
            token >>= 7
        data += bytes((token, _mark(logprob)))
    return b64encode(data).decode()


def read_fingerprint(text: str, most: int) -> Fingerprint:
    """Decode a fingerprint of at most `most` tokens. Raises BadOutcome if it is malformed."""
    try:
        data = iter(b64decode(text.encode(), validate=True))
    except (Error, UnicodeEncodeError):
        raise BadOutcome("a fingerprint is not in base64") from None
    tokens, marks = list[int](), list[int]()
    for first in data:
        token, shift = first & 0x7F, 0
        byte = first
        while byte & 0x80:
            shift += 7
            byte = next(data, 0x80 if shift <= 21 else 0)
            token |= (byte & 0x7F) << shift
            if shift > 21:
                raise BadOutcome("a fingerprint has a token with too many digits")
        mark = next(data, None)
        if mark is None or len(tokens) == most:
            raise BadOutcome(f"a fingerprint is cut, or has more than {most} tokens")
        tokens.append(token)
        marks.append(mark)
    return Fingerprint(tuple(tokens), tuple(marks))


def without_fingerprints(output: bytes) -> bytes:
    """Return the output of a piece as its author gets it."""
    return _LAST_FIELD.sub(b"}", output)
