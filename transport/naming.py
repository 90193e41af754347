"""Names that people read and type: which are made here, and how those that others made are shown.

One rule for all of them, after Unicode's UTS 39 (highly restrictive): letters, marks and digits of
one script, or of Latin beside Chinese, Japanese or Korean, with `.`, `_` and `-`. What looks like
ASCII and is not is refused here, and shown as such where it came from elsewhere. The table has the
letters that fonts draw alike; that is no library's worth of them, but those of the scripts that
people take for Latin. Spec: docs/spec/model.md, Names.
"""

import unicodedata
from typing import Final

MOST: Final = 64  # characters
MOST_BYTES: Final = 128  # as others take
HINT: Final = (
    f"use up to {MOST} letters and digits of one script, `.`, `_` and `-`, a letter or digit first"
)

_ALIKE: Final = {
    ord(theirs): ours
    for group, latin in (
        ("аеорсухѕіјԁԛԝһӏьҽ", "aeopcyxsijdqwhlbe"),
        ("АВЕКМНОРСТУХЅІЈӀЗԌԚԜ", "ABEKMHOPCTYXSIJl3GQW"),
        ("αγικνορυϲϳ", "ayikvopucj"),
        ("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹϺ", "ABEZHIKMNOPTYXCM"),
        ("օսհոցզլ", "ouhngql"),  # Armenian
        ("ᎪᎬᎻᎫᏦᏞᎷᏢᎡᏚᎢᏙᎳᏃᏟᏴᎠᏀᎥ", "AEHJKLMPRSTVWZCBDGi"),  # Cherokee
        ("ıɑɡɩⲟⲣⲥ‐‑‒–—−", "iagiopc------"),
    )
    for theirs, ours in zip(group, latin, strict=True)
}
_COMMON: Final = frozenset(
    ("DIGIT", "FULL", "LOW", "HYPHEN", "COMBINING", "MODIFIER", "EXTENDED", "VARIATION")
)
_TOGETHER: Final = (
    frozenset(("Latin", "Cjk", "Ideographic", "Hiragana", "Katakana")),
    frozenset(("Latin", "Cjk", "Ideographic", "Hangul")),
    frozenset(("Latin", "Cjk", "Ideographic", "Bopomofo")),
)
_INNER: Final = "._-"
_STACKED: Final = 4  # marks on one letter; more reach into the lines around it
# What is drawn as nothing, though it counts as a letter, a mark or a symbol (UAX 44,
# Default_Ignorable_Code_Point), and the blank of braille.
_BLANK: Final = frozenset(
    map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0))
) | frozenset(map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0000, 0xE1000))))


def normal(name: str) -> str:
    """A name that somebody typed, in the one form (NFC): keyboards and disks differ in it."""
    return unicodedata.normalize("NFC", name)


def problem(name: str) -> str:
    """Why a name may not be made here; "" where it may."""
    if not name or len(name) > MOST or len(name.encode(errors="replace")) > MOST_BYTES:
        return f"it has not 1 to {MOST} characters in at most {MOST_BYTES} bytes"
    if name.isascii():
        plain = name.replace("-", "a").replace("_", "a").replace(".", "a").isalnum()
        return "" if plain and name[0] not in _INNER else "it has other characters"
    if unicodedata.normalize("NFKC", name) != name:
        return "it has characters that are a spelling of others"
    if any(map(_is_odd, name)) or unicodedata.category(name[0])[0] not in "LN":
        return "it has other characters"
    return doubt(name)


def doubt(name: str) -> str:
    """What a person would want to know of somebody's name: what it looks like, or that its letters
    are of scripts that nobody writes together; "" for nothing."""
    if name.isascii():
        return ""
    bare = "".join(each for each in unicodedata.normalize("NFKC", name) if not is_hidden(each))
    alike = bare.translate(_ALIKE)
    if alike.isascii():
        return f'looks like "{alike}"'
    scripts = {found for each in name if (found := _script(each))}
    if len(scripts) > 1 and not any(scripts <= few for few in _TOGETHER):
        listed = sorted(scripts)
        return f"mixes {', '.join(listed[:-1])} and {listed[-1]}"
    return ""


def shown(name: str) -> str:
    """Somebody's name for a person, with what is doubtful about it."""
    found = doubt(name)
    return f"{spelled(name)} ({found})" if found else spelled(name)


def spelled(name: str) -> str:
    """Somebody's name as it is, or, where it is doubtful, with its letters spelled out."""
    text = escaped(name)
    return text.encode("ascii", "backslashreplace").decode() if doubt(name) else text


def escaped(text: str, keep: str = "") -> str:
    """A text in which nothing steers a terminal, reorders, or hides: such characters are spelled
    out, but for those of `keep`."""
    if text.isascii() and text.isprintable():
        return text
    out, stacked = [], 0
    for each in text:
        mark = not each.isascii() and unicodedata.category(each) in ("Mn", "Me")
        stacked = stacked + 1 if mark else 0
        odd = each not in keep and (is_hidden(each) or stacked > _STACKED)
        out.append(spelled_out(each) if odd else each)
    return "".join(out)


def is_hidden(character: str) -> bool:
    """Whether it is drawn as nothing, or does something else than being drawn: controls, marks of
    direction, joiners, fillers, tags, variation selectors."""
    return not character.isprintable() or character in _BLANK


def spelled_out(character: str) -> str:
    """As in Python and JSON: `\\x1b`, `\\u202e`."""
    return character.encode("unicode_escape").decode()


def _is_odd(character: str) -> bool:
    if character in _INNER or is_hidden(character):
        return character not in _INNER
    return unicodedata.category(character)[0] not in "LM" and not character.isdecimal()


def _script(character: str) -> str:
    """The first word of what Unicode calls a letter, which is its script; "" for what all use."""
    if character.isascii() and not character.isalpha():
        return ""
    word = unicodedata.name(character, "").split(" ")[0].split("-")[0]
    return "" if word in _COMMON else word.capitalize()
