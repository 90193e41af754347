"""Rules for names that this node creates, and safe rendering of names and texts that come from
peers.

The rules follow the level "highly restrictive" of Unicode's UTS 39. A name consists of letters,
marks and digits of one script, or of Latin together with Chinese, Japanese or Korean, and of `.`,
`_` and `-`. This node does not create a non-ASCII name that looks like an ASCII name, and it shows
such a name of a peer with a warning.

The table below lists the letters of common scripts that fonts draw like Latin letters. It is
shorter than Unicode's complete list: that list would need a dependency that follows its changes,
and the letters that it adds do not occur in names. Specification: docs/spec/model.md, section 4.2.
"""

import unicodedata
from collections.abc import Callable
from typing import Final

MOST: Final = 64  # characters
MOST_BYTES: Final = 128  # other nodes refuse longer names
HINT: Final = (
    f"use up to {MOST} letters and digits of one script, `.`, `_` and `-`, a letter or digit first"
)

_ALIKE: Final = {
    ord(theirs): ours
    for group, latin in (
        ("аеорсухѕіјԁԛԝһӏьҽүѵꙇ", "aeopcyxsijdqwhlbeyvi"),
        ("АВЕКМНОРСТУХЅІЈӀЗԌԚԜ", "ABEKMHOPCTYXSIJl3GQW"),
        ("αγικνορυϲϳ", "ayikvopucj"),
        ("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹϺ", "ABEZHIKMNOPTYXCM"),
        ("օսհոցզլ", "ouhngql"),  # Armenian
        ("ᎪᎬᎻᎫᏦᏞᎷᏢᎡᏚᎢᏙᎳᏃᏟᏴᎠᏀᎥ", "AEHJKLMPRSTVWZCBDGi"),  # Cherokee
        ("ᎪᎬᎻᎫᏦᏞᎷᏢᎡᏚᎢᏙᎳᏃᏟᏴᎠᏀᎥ".lower(), "aehjklmprstvwzcbdgi"),  # its small letters
        ("ꓐꓑꓒꓓꓔꓖꓗꓙꓚꓜꓝꓟꓠꓡꓢꓣꓤꓦꓧꓪꓫꓬꓮꓰꓲꓳꓴ", "BPdDTGKJCZFMNLSRRVHWXYAEIOU"),  # Lisu
        ("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘꞯʀꜱᴛᴜᴠᴡʏᴢ", "abcdefghijklmnopqrstuvwyz"),  # Latin as well
        ("ƖǀꞁƚɫƨƷȜƽƿıɑɡɩ", "llltl233spiagi"),
        ("ⲁⲃⲉⲏⲓⲕⲙⲛⲟⲣⲥⲧⲩⲭⲱ", "abehikmnopctyxw"),  # Coptic
        ("ⲀⲂⲈⲎⲒⲔⲘⲚⲞⲢⲤⲦⲨⲬⲰ", "ABEHIKMNOPCTYXW"),
        ("‐‑‒–—−⁃ーᅳ一", "----------"),
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
_STACKED: Final = 4  # marks on one letter; more of them would overwrite neighbouring lines
# Invisible characters that Unicode classes as letters, marks or symbols (UAX 44,
# Default_Ignorable_Code_Point), and the braille blank.
_BLANK: Final = frozenset(
    map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0))
) | frozenset(map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0000, 0xE1000))))


def normal(name: str) -> str:
    """Return a typed name in Unicode normal form NFC, because keyboards and file systems use
    different forms."""
    return unicodedata.normalize("NFC", name)


def problem(name: str) -> str:
    """Return the reason why this node refuses to create a name, or "" if the name is valid."""
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
    """Return a warning about a peer's name, or "" if there is none. The warning says that the name
    looks like an ASCII name, or that it mixes scripts that are not written together."""
    if name.isascii():
        return ""
    bare = "".join(each for each in unicodedata.normalize("NFKC", name) if not _is_unseen(each))
    alike = bare.translate(_ALIKE)
    if alike.isascii():
        return f'looks like "{alike}"'
    scripts = {found for each in name if (found := _script(each))}
    if len(scripts) > 1 and not any(scripts <= few for few in _TOGETHER):
        listed = sorted(scripts)
        return f"mixes {', '.join(listed[:-1])} and {listed[-1]}"
    return ""


def shown(name: str) -> str:
    """Return a peer's name for display: escaped (`spelled`), and followed by the warning about it
    in parentheses, if there is one."""
    found = doubt(name)
    return f"{spelled(name)} ({found})" if found else spelled(name)


def spelled(name: str) -> str:
    """Return a peer's name with unsafe characters escaped, and with all non-ASCII characters
    escaped if there is a warning about the name."""
    text = escaped(name)
    return text.encode("ascii", "backslashreplace").decode() if doubt(name) else text


def spelled_out(character: str) -> str:
    r"""Return one character as a Python escape sequence, such as `\x1b` or `\u202e`."""
    return character.encode("unicode_escape").decode()


def escaped(text: str, keep: str = "", spell: Callable[[str], str] = spelled_out) -> str:
    """Return a text with characters escaped that control a terminal, reorder text, are invisible,
    or would cover other lines. Characters in `keep` are not escaped, and
    `spell` escapes one."""
    if text.isascii() and text.isprintable():
        return text
    out, stacked = [], 0
    for each in text:
        mark = not each.isascii() and unicodedata.category(each) in ("Mn", "Me")
        stacked = stacked + 1 if mark else 0
        odd = each not in keep and (is_hidden(each) or stacked > _STACKED)
        out.append(spell(each) if odd else each)
    return "".join(out)


def is_hidden(character: str) -> bool:
    """Return whether a character is invisible or controls others: control characters, direction
    marks, joiners, fillers, tags, and variation selectors."""
    return not character.isprintable() or character in _BLANK


def _is_unseen(character: str) -> bool:
    """Return whether a character is invisible, or a mark of which no letter is made (as of e and an
    acute accent): on a letter of Latin, such a mark is easily overlooked."""
    return is_hidden(character) or unicodedata.category(character) in ("Mn", "Me")


def _is_odd(character: str) -> bool:
    """Return whether a character is forbidden in a name."""
    if character in _INNER or is_hidden(character):
        return character not in _INNER
    return unicodedata.category(character)[0] not in "LM" and not character.isdecimal()


def _script(character: str) -> str:
    """Return the script of a letter, read from the first word of its Unicode name, or "" for
    characters that many scripts share."""
    if character.isascii() and not character.isalpha():
        return ""
    word = unicodedata.name(character, "").split(" ")[0].split("-")[0]
    return "" if word in _COMMON else word.capitalize()
