"""Names of models: which are valid, and which root the text of a user means. No I/O."""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from ...transport import naming
from ..defaults import PREFIX_MIN
from ..errors import ModelError
from .manifest import is_digest

_HEX = re.compile(r"[0-9a-f]{8,64}")
_SHORT = re.compile(rf"[0-9a-f]{{1,{PREFIX_MIN - 1}}}")  # too short to identify a root
_CACHE_NAME = re.compile(r"models--(?:.+?--)?(.+)")


def check_name(name: str) -> None:
    """Raise ModelError `bad-name` if a name breaks the rule in `transport/naming.py`."""
    if why := naming.problem(name):
        raise ModelError(
            "bad-name", f"{ascii(name)[:80]} cannot be a model's name: {why}", hint=naming.HINT
        )


def check_new_name(name: str) -> None:
    """Raise ModelError `bad-name` if a new name is invalid or looks like a hash."""
    check_name(name)
    if _HEX.fullmatch(name):
        raise ModelError(
            "bad-name",
            f"`{name}` looks like the start of a root hash, so it could not be used as a name",
            hint="choose another name: `shoal model add FOLDER --name NAME`",
        )


def slug(folder: Path) -> str:
    """Derive a model's name from the path of its folder.

    In a Hugging Face download cache, the last folder is a hash. The name is then derived from the
    cache folder of the model (`models--OWNER--NAME`).
    """
    folder = folder.absolute()
    text = folder.name
    for part in folder.parts:
        if found := _CACHE_NAME.fullmatch(part):
            text = found[1]
    text = naming.normal(text)
    if naming.problem(text):
        text = re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-")[: naming.MOST]
    return text or "model"


def resolve(text: str, known: Iterable[tuple[str, str]]) -> str:
    """Return the only root among the (name, root) pairs `known` that `text` refers to.

    The forms of `text` are those of `Library.resolve`. Raises ModelError: `unknown-model` if no
    root matches, `ambiguous-model` if several do.
    """
    pairs = set(known)
    name, at, prefix = text.rpartition("@")
    if at:
        found = {root for n, root in pairs if n == name and root.startswith(prefix) and prefix}
    else:
        found = {root for n, root in pairs if n == text}
        if not found and _HEX.fullmatch(text):
            found = {root for _, root in pairs if root.startswith(text)}
    if not found:
        raise unknown(text, {n for n, _ in pairs if not is_digest(n)})
    if len(found) > 1:
        choices = ", ".join(f"{name or text}@{root[:PREFIX_MIN]}" for root in sorted(found)[:4])
        raise ModelError(
            "ambiguous-model",
            f"{ascii(text)[:80]} matches {len(found)} models: {choices}",
            hint="name one of them as NAME@HASH",
        )
    (only,) = found
    return only


def unknown(
    text: str,
    names: Iterable[str],
    where: str = "",
    *,
    hint: str = "`shoal model list` shows the known models",
) -> ModelError:
    """Return the error `unknown-model` for the text of a user.

    The message suggests the one of `names` that is most similar to the text. `where` follows "is
    known" in the message, and says where this node has looked.
    """
    near = difflib.get_close_matches(text[:64], sorted(names)[:10_000], n=1, cutoff=0.5)
    meant = f", did you mean `{naming.shown(near[0])}`?" if near else ""
    if _SHORT.fullmatch(text) and not near:
        meant = f"; the beginning of a root needs at least {PREFIX_MIN} digits"
    return ModelError(
        "unknown-model", f"no model {ascii(text)[:80]} is known{where}{meant}", hint=hint
    )
