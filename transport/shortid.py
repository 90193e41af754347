"""Shortens ids for display, and finds the whole id for a prefix that a person typed.

Peer ids, roots and job ids have 52 or 64 characters. People see the first few of them. They may
type any prefix that belongs to only one of the ids that this node knows. A prefix that is too
short, unknown or ambiguous is an error, never a guess. A prefix proves nothing, because an attacker
can generate keys until an id begins with it. So programs get whole ids (`--json`).
"""

import re
from collections.abc import Collection, Iterable
from typing import Final

from .errors import ShoalError

COMMON: Final = "12D3KooW"  # the prefix of every Ed25519 peer id
PEER_SHOWN: Final = len(COMMON) + 6
HEX_SHOWN: Final = 12
LEAST: Final = 4  # characters that a prefix needs, not counting `COMMON`
_CHOICES: Final = 4  # ids that the error for an ambiguous prefix lists
_WHOLE_PEER: Final = re.compile(rf"(?<![/\w]){COMMON}[1-9A-HJ-NP-Za-km-z]{{44}}(?!\w)")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_HEX: Final = frozenset("0123456789abcdefABCDEF")


class BadId(ShoalError):
    """A typed id that matches no id or several: `unknown-KIND`, `ambiguous-KIND`, `short-KIND`."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


def short(ident: str, among: Collection[str] = ()) -> str:
    """Return the prefix to display for an id, long enough to differ from all others in `among`."""
    letters = PEER_SHOWN if ident.startswith(COMMON) else HEX_SHOWN
    while letters < len(ident) and any(
        other != ident and other.startswith(ident[:letters]) for other in among
    ):
        letters += 1
    return ident[:letters]


def is_id(text: str) -> bool:
    """Return whether a text is a whole id: a peer id, or the 64 hex digits of a root or job."""
    return _DIGEST.fullmatch(text) is not None or _WHOLE_PEER.fullmatch(text) is not None


def shortened(text: str) -> str:
    """Return a text for people with its peer ids shortened, except those in addresses.

    People copy addresses, so these stay whole.
    """
    found = set(_WHOLE_PEER.findall(text))
    return _WHOLE_PEER.sub(lambda match: short(match[0], found), text)


def meant(asked: str, known: Iterable[str], kind: str, *, hint: str, least: int = LEAST) -> str:
    """Return the id in `known` that equals `asked` or begins with it.

    `kind` is one word for the error message.

    Raises BadId.
    """
    text = asked.strip().removesuffix("…")
    if _HEX.issuperset(text) and not COMMON.startswith(text[: len(COMMON)]):
        text = text.lower()  # base 58 has both cases, hex digits have one
    shown = ascii(text[:64])
    found = {ident for ident in known if ident.startswith(text)}
    if text in found:
        return text
    own = text.removeprefix(COMMON)
    common = own != text or (text != "" and COMMON.startswith(text))
    if len(own) < least or COMMON.startswith(text):
        after = f" after `{COMMON}`" if common else ""
        raise BadId(
            f"short-{kind}",
            f"{shown} is too short to mean one {kind}: expected at least {least} characters{after}",
            hint=hint,
        )
    if not found:
        what = f"{shown} is known" if is_id(text) else f"known here begins with {shown}"
        raise BadId(f"unknown-{kind}", f"no {kind} {what}", hint=hint)
    if len(found) > 1:
        choices = ", ".join(f"`{short(ident, found)}`" for ident in sorted(found)[:_CHOICES])
        more = f" and {len(found) - _CHOICES} more" if len(found) > _CHOICES else ""
        raise BadId(
            f"ambiguous-{kind}",
            f"{shown} begins the ids of {len(found)} {kind}s: {choices}{more}",
            hint=f"give more characters; {hint}",
        )
    return found.pop()
