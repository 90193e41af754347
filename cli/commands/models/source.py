"""The source of a model on the command line: a path, ollama:NAME or ORG/NAME."""

import os
import re
from pathlib import Path

import click

from ....node.control.messages.models import AddModel

_HUB = "https://huggingface.co"
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*")
_OLLAMA = "ollama:"
_STORES = ("~/.ollama/models", "/usr/share/ollama/.ollama/models", "/var/lib/ollama/models")


def asked(source: str, name: str | None) -> AddModel:
    """Return the request to add a source. A path that exists comes before a name on a hub.

    Raises BadParameter if the source is none of the three.
    """
    path = Path(source)
    if source.startswith(_OLLAMA) and not path.exists():
        return AddModel(
            path=source.removeprefix(_OLLAMA), name=name, origin="ollama", place=_store()
        )
    if path.exists() or not _REPOSITORY.fullmatch(source):
        if not path.exists():
            raise click.BadParameter(
                f"`{source}` is none of: a folder, a GGUF file, ollama:NAME, ORG/NAME of a hub",
                param_hint="`SOURCE`",
            )
        return AddModel(path=str(path.resolve()), name=name)
    endpoint = os.environ.get("HF_ENDPOINT") or _HUB
    token = os.environ.get("HF_TOKEN") or None
    return AddModel(path=source, name=name, origin="hub", place=endpoint, token=token)


def _store() -> str:
    """Return the folder of the local Ollama store: the one that OLLAMA_MODELS names, or the first
    of the usual ones that exists."""
    if named := os.environ.get("OLLAMA_MODELS"):
        return str(Path(named).expanduser().resolve())
    stores = [Path(each).expanduser() for each in _STORES]
    return str(next((each for each in stores if each.is_dir()), stores[0]))
