"""Short inputs that cost a naive decoder much memory or time. Tests run every decoder on them."""

from typing import Final

MANY: Final = 0x0DAC  # items that a header announces
_NESTED: Final = b"\xdc\x0d\xac" * 1000

DECODER_BOMBS: Final[dict[str, bytes]] = {
    # a list is allocated for what n bytes may hold
    "arrays that end too early": _NESTED + b"\xc0" * 500,
    "arrays that are complete": _NESTED + b"\xc0" * (1000 * (MANY - 1) + 1),
    "arrays, deep and complete": b"\x91" * 1000 + b"\xc0",
    "long arrays": b"\xdd\xff\xff\xff\xff" * 700,
    "one long array": b"\xdd\xff\xff\xff\xff",
    "short maps": b"\x81\xa0" * 1000 + b"\xc0",
    "maps that end too early": b"\xde\x0d\xac\xa0" * 800,
    "long maps": b"\xdf\xff\xff\xff\xff\xa0" * 500,
    "empty maps": b"\xdc\x40\x00" + b"\x80" * 0x4000,
    "empty arrays": b"\xdc\x40\x00" + b"\x90" * 0x4000,
    "maps in a map": b"\xde\x20\x00"
    + b"".join(b"\xcd%c%c\x80" % divmod(i, 256) for i in range(0x2000)),
    "deeper than the decoder's own stack": b"\x91" * 3000,
}
"""Bombs by content. Attacks on nodes found these shapes."""

SMALL_BOMBS: Final = {name: bomb for name, bomb in DECODER_BOMBS.items() if len(bomb) <= 2**14}
"""Bombs small enough for a fact."""
