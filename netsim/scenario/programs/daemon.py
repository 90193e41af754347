"""`daemon`: the unmodified shoal daemon, and its settings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..format import units
from ..format.source import knob

PROFILES = (
    "raspberry", "old-laptop", "laptop", "macbook", "desktop", "gaming", "workstation",
)  # fmt: skip


RATE_LEAST = 10_000
"""Bytes per second: the minimum that the daemon takes for `--up`, `--down` and `--relay`."""


def limit(value: Any) -> int:
    """Read a rate as whole bytes per second, at least the daemon's minimum."""
    found = int(units.rate(value))
    if found < RATE_LEAST:
        raise ValueError(f"`{value}`: a daemon's rates are at least {RATE_LEAST // 1000} kB/s")
    return found


def relay(value: Any) -> int:
    """Read a rate like `limit`; `"none"` is 0."""
    return 0 if value == "none" else limit(value)


def memory(value: Any) -> int:
    """Read a size in bytes, greater than 0."""
    found = units.size(value)
    if not found:
        raise ValueError(f"`{value}`: a daemon has to offer some memory")
    return found


def layers(value: Any) -> tuple[int, int]:
    """Read layers: `"0:3"` is from layer 0 up to, but not including, layer 3."""
    first, colon, stop = units.text(value).partition(":")
    if not (colon and first.isdecimal() and stop.isdecimal() and int(first) < int(stop)):
        raise ValueError(f'`{value}` is not a range of layers; write it as "0:3"')
    return int(first), int(stop)


def word(*known: str) -> Callable[[Any], str]:
    """Return a reader that accepts only the given words."""

    def read(value: Any) -> str:
        if value not in known:
            raise ValueError(f"`{value}` is not one of {', '.join(known)}")
        return str(value)

    return read


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """Settings of `daemon`."""

    to: tuple[str, ...] | None = knob(
        units.names_or_none, None, key="bootstrap",
        says="daemons from which it learns of the others (default: the first public one)",
    )  # fmt: skip
    profile: str = knob(units.text, "desktop", says="the machine", known=lambda: PROFILES)
    engine: bool = knob(units.switch, True, says="whether it computes; the engine is simulated")
    tokens: str = knob(
        word("numbers", "model"), "numbers",
        says="`numbers`: made up; `model`: computed with the embedded model's weights",
    )  # fmt: skip
    model: str | None = knob(
        units.text, None, says="serve this model (default: the one that is needed)"
    )
    layers: tuple[int, int] | None = knob(layers, None, says='these layers of it: "0:3"')
    memory: int | None = knob(memory, None, says="memory to offer (default: the machine's)")
    dtype: str = knob(word("auto", "float32", "bfloat16"), "auto", says="precision of its layers")
    port: int = knob(units.Count(65_535), 4001, says="TCP port")
    links: int | None = knob(units.positive, None, says="dial members while there are fewer links")
    relay: int | None = knob(
        relay, None,
        says='what it lends as a relay: a rate, or `"none"` (default: the daemon\'s own rate, once '
        "others have reached it)",
    )  # fmt: skip
    up: int | None = knob(limit, None, says="the maximum that it sends (default: no limit)")
    down: int | None = knob(limit, None, says="the maximum that it receives (default: no limit)")
