"""Index of the contexts in a text, for finding where the latest tokens occurred before. No I/O.

Stands for a suffix tree of bounded depth: for each of a few lengths, a table leads from the hash of
the last tokens to their latest place, and from each place to the place before. It takes about 30
bytes for each token, where a tree in Python would take thousands. Places are compared with the
context, so equal hashes do no harm. Tables are small at first, because most texts are short.
"""

from array import array
from collections.abc import Sequence

from .defaults import FIRST_BITS, LONGEST_MATCH, LOOKED_AT, MORE_BITS, ORDERS, TABLE_BITS

_BASE = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1
_POWERS = tuple(pow(_BASE, order, _WORD + 1) for order in ORDERS)
_LENGTHS = tuple(1 << bits for bits in range(LONGEST_MATCH.bit_length() - 1, 0, -1))


def _hash(tokens: Sequence[int]) -> int:
    """Return the hash of a context.

    The hash is a polynomial, so that it follows from the hashes of the texts that end before
    the context and with it.
    """
    value = 0
    for token in tokens:
        value = (value * _BASE + token + 1) & _WORD
    return value


class SuffixIndex:
    """A text with an index of its contexts."""

    def __init__(self) -> None:
        self.tokens = array("I")
        self._hashes = array("Q", (0,))  # of the text up to each place
        self._set_tables(FIRST_BITS)

    def _set_tables(self, bits: int) -> None:
        """Begin with empty tables of 2^`bits` slots."""
        self._bits = bits
        self.latest = [array("i", b"\xff" * (4 << bits)) for _ in ORDERS]
        self._before = [array("i") for _ in ORDERS]

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens (ids below 2^32). Takes about 2 µs for each."""
        first = len(self.tokens) + 1
        self.tokens.extend(tokens)
        value = self._hashes[-1]
        for token in tokens:
            value = (value * _BASE + token + 1) & _WORD
            self._hashes.append(value)
        while len(self.tokens) > 1 << self._bits and self._bits < TABLE_BITS:
            self._set_tables(min(self._bits + MORE_BITS, TABLE_BITS))
            first = 1
        self._enter(first)

    def _enter(self, first: int) -> None:
        """Enter the contexts that end at the places from `first` on into the tables."""
        hashes, shift = self._hashes, 64 - self._bits
        tables = zip(ORDERS, _POWERS, self.latest, self._before, strict=True)
        for order, power, latest, before in tables:
            for place in range(first, len(hashes)):
                slot = 0
                if place >= order:
                    value = (hashes[place] - hashes[place - order] * power) * _BASE
                    slot = (value & _WORD) >> shift
                before.append(latest[slot])
                latest[slot] = place

    def places(self, context: Sequence[int]) -> tuple[int, list[int]]:
        """Return the length of the longest match with the end of `context`, as a power of two, and
        the places behind such matches in this text, the latest first.

        `context` has at most LONGEST_MATCH tokens that count. A place may be the text's end.
        """
        if not self.tokens:
            return 0, []
        recent = array("I", context[-LONGEST_MATCH:])
        for order, latest, before in zip(ORDERS, self.latest, self._before, strict=True):
            if len(recent) < order:
                continue
            found = self._matching(latest, before, recent, order)
            if found:
                length = max(found.values())
                return length, [place for place, match in found.items() if match == length]
        return 0, []

    def _matching(
        self, latest: "array[int]", before: "array[int]", recent: "array[int]", order: int
    ) -> dict[int, int]:
        """Return the lengths of the matches by their places."""
        found: dict[int, int] = {}
        last = recent[-order:]
        place = latest[(_hash(last) * _BASE & _WORD) >> (64 - self._bits)]
        for _ in range(LOOKED_AT):
            if place <= 0:
                break
            if place < len(self.tokens) and self.tokens[place - order : place] == last:
                found[place] = self._match(place, recent)
            place = before[place - 1]
        return found

    def _match(self, place: int, recent: "array[int]") -> int:
        for length in _LENGTHS:
            fits = length <= min(place, len(recent))
            if fits and self.tokens[place - length : place] == recent[-length:]:
                return length
        return 1


class History:
    """A text of bounded length: when it is full, its older half is forgotten."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._older, self._newer = SuffixIndex(), SuffixIndex()
        self._last = array("I")  # the latest session

    def __len__(self) -> int:
        return len(self._older) + len(self._newer)

    @property
    def parts(self) -> tuple[SuffixIndex, SuffixIndex]:
        """The newer and the older half."""
        return self._newer, self._older

    def common(self, ids: Sequence[int]) -> int:
        """Return how many first tokens a session shares with the previous session. They need not be
        remembered twice."""
        before, self._last = self._last, array("I", ids[: 2 * self._half])
        low, high = 0, min(len(before), len(ids))
        while low < high:
            middle = (low + high + 1) // 2
            if before[low:middle] == self._last[low:middle]:
                low = middle
            else:
                high = middle - 1
        return low

    def extend(self, tokens: Sequence[int]) -> None:
        """Append a part of a text, at most half of the limit."""
        if len(self._newer) + len(tokens) > self._half:
            self._older, self._newer = self._newer, SuffixIndex()
        self._newer.extend(tokens[-self._half :])
