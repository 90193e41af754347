"""Finds a model in a local Ollama store: a manifest names the blob that is a GGUF file.

`manifests/HOST/NAMESPACE/NAME/TAG` is JSON with layers; `blobs/sha256-…` are the files. The digest
of the blob is verified, because a download that was interrupted leaves a blob of the right size.
"""

import hashlib
import re
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from ...dht.errors import ModelError, unreadable
from ...transport.decoding import read_json
from ...transport.errors import Undecodable
from ...transport.message import Message
from .output import Note

MANIFEST_LIMIT: Final = 1 << 20  # bytes
_MODEL: Final = "application/vnd.ollama.image.model"
_ADAPTER: Final = "application/vnd.ollama.image.adapter"
_PIECE: Final = 1 << 20
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._\-]{0,127}")


class _ManifestLayer(Message, frozen=True):
    mediaType: Annotated[str, Meta(max_length=256)]
    digest: Annotated[str, Meta(pattern=r"^sha256[:-][0-9a-f]{64}\Z")]
    size: Annotated[int, Meta(ge=0, lt=2**53)]


class _ImageManifest(Message, frozen=True):
    layers: Annotated[tuple[_ManifestLayer, ...], Meta(max_length=64)]


def ollama_file(store: Path, name: str, note: Note) -> Path:
    """Return the path of a model's GGUF file, after checking its digest.

    Raises ModelError: `bad-name`, `no-store`, `unknown-model`, `bad-manifest`, `missing-blob`,
    `chunk-corrupt`, `unsupported-architecture`.
    """
    layers = _manifest(store, name).layers
    if any(layer.mediaType == _ADAPTER for layer in layers):
        raise ModelError(
            "unsupported-architecture",
            f"`{name}` is an adapter over another model",
            hint="add the model that it belongs to: `shoal model add ollama:NAME`",
        )
    models = [layer for layer in layers if layer.mediaType == _MODEL]
    if len(models) != 1:
        raise _damaged(name, f"its manifest has {len(models)} model files, 1 was expected")
    digest = models[0].digest[7:]
    path = store / "blobs" / f"sha256-{digest}"
    _check(path, digest, models[0].size, name, note)
    return path


def _manifest(store: Path, name: str) -> _ImageManifest:
    if not (store / "manifests").is_dir():
        raise ModelError(
            "no-store",
            f"no Ollama store is at `{store}`",
            hint="set OLLAMA_MODELS to the folder that has `manifests` and `blobs`",
        )
    path = store / "manifests" / _place(name)
    try:
        with open(path, "rb") as file:
            data = file.read(MANIFEST_LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise ModelError(
            "unknown-model",
            f"the Ollama store at `{store}` has no `{name}`",
            hint=f"`ollama list` shows what it has, `ollama pull {name}` gets it",
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        return read_json(_ImageManifest, data, limit=MANIFEST_LIMIT)
    except Undecodable as error:
        raise _damaged(name, f"its manifest is malformed: {error}") from None


def _place(name: str) -> Path:
    """Return the path of a name's manifest below `manifests`.

    Raises ModelError `bad-name` if a part of the name could lead elsewhere.
    """
    whole, _, tag = name.partition(":")
    parts = whole.split("/")
    if len(parts) > 3 or not all(map(_PART.fullmatch, [*parts, tag or "latest"])):
        raise ModelError(
            "bad-name",
            f"{ascii(name)[:80]} is not a name of Ollama",
            hint="`ollama list` shows them: `shoal model add ollama:llama3.2:1b`",
        )
    defaults = ("registry.ollama.ai", "library")
    return Path(*defaults[: 3 - len(parts)], *parts, tag or "latest")


def _check(path: Path, digest: str, size: int, name: str, note: Note) -> None:
    """Raise ModelError unless the file has this size in bytes and this SHA-256."""
    hashed, done = hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:
            while data := file.read(_PIECE):
                hashed.update(data)
                done += len(data)
                if done > size:
                    raise _damaged(name, f"`{path.name}` has more than its {size} bytes")
                note(done, size)
    except FileNotFoundError:
        raise ModelError(
            "missing-blob",
            f"the Ollama store lacks `{path.name}`, the weights of `{name}`",
            hint=f"get it again: `ollama pull {name}`",
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    if hashed.hexdigest() != digest:
        raise _damaged(name, f"`{path.name}` does not have its digest")


def _damaged(name: str, why: str) -> ModelError:
    return ModelError(
        "bad-manifest",
        f"`{name}` in the Ollama store is damaged: {why}",
        hint=f"get it again: `ollama rm {name}`, then `ollama pull {name}`",
    )
