"""Shortens ids for display, and finds the complete id for a prefix that a user typed.

Peer ids, roots and job ids have 52 or 64 characters, of which users see the first few. They may
type any prefix that belongs to only one of the ids that this node knows. A prefix that is too
short, unknown or ambiguous is an error: this module never guesses. A prefix also proves nothing,
because an attacker can generate keys until an id begins with it. Programs therefore get complete
ids (`--json`).
"""

import re
from collections.abc import Collection, Iterable
from typing import Final

from .errors import ShoalError

COMMON: Final = "12D3KooW"  # the prefix of every Ed25519 peer id
PEER_SHOWN: Final = len(COMMON) + 6
HEX_SHOWN: Final = 12
LEAST: Final = 4  # characters that a prefix needs in addition to `COMMON`
_CHOICES: Final = 4  # number of ids that the error for an ambiguous prefix lists
_WHOLE_PEER: Final = re.compile(rf"(?<![/\w]){COMMON}[1-9A-HJ-NP-Za-km-z]{{44}}(?!\w)")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_HEX: Final = frozenset("0123456789abcdefABCDEF")


class BadId(ShoalError):
    """Error for a typed id that is too short or that does not match exactly one known id. The code
    is `unknown-KIND`, `ambiguous-KIND` or `short-KIND`."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


def short(ident: str, among: Collection[str] = ()) -> str:
    """Return the prefix that is displayed for an id. It is long enough to differ from all other ids
    in `among`."""
    letters = PEER_SHOWN if ident.startswith(COMMON) else HEX_SHOWN
    while letters < len(ident) and any(
        other != ident and other.startswith(ident[:letters]) for other in among
    ):
        letters += 1
    return ident[:letters]


def is_id(text: str) -> bool:
    """Return whether a text is a complete id: a peer id, or the 64 hex digits of a root or of a job
    id."""
    return _DIGEST.fullmatch(text) is not None or _WHOLE_PEER.fullmatch(text) is not None


def shortened(text: str) -> str:
    """Return a text for people, with the peer ids in it shortened.

    Peer ids inside addresses stay complete, because people copy addresses.
    """
    found = set(_WHOLE_PEER.findall(text))
    return _WHOLE_PEER.sub(lambda match: short(match[0], found), text)


def meant(asked: str, known: Iterable[str], kind: str, *, hint: str, least: int = LEAST) -> str:
    """Return the only id in `known` that equals `asked` or begins with it.

    `kind` is one word for the error message, `hint` the hint of the error, and `least` the number
    of characters that a prefix needs.

    Raises BadId if the prefix is too short, or if it matches no id or several.
    """
    text = asked.strip().removesuffix("…")
    if _HEX.issuperset(text) and not COMMON.startswith(text[: len(COMMON)]):
        text = text.lower()  # case matters in base58, but not in hex digits
    shown = ascii(text[:64])
    found = {ident for ident in known if ident.startswith(text)}
    if text in found:
        return text
    own = text.removeprefix(COMMON)
    if len(own) < least or COMMON.startswith(text):
        after = f" after `{COMMON}`" if any(ident.startswith(COMMON) for ident in found) else ""
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
    (only,) = found
    return only
