"""Import of a Hugging Face folder: checks the folder, and converts it to a manifest and chunks.

The folder must have `config.json`, `tokenizer.json`, and either `model.safetensors` or
`model.safetensors.index.json` with the files that it lists. A symbolic link is followed only within
the folder or, for a Hugging Face download cache, into the cache. Nothing in the folder is executed,
and pickle files are not opened.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...transport.errors import FileTooLarge
from ...transport.host.seam import Files, Host
from ..defaults import CHUNK, CONFIG_DEPTH, CONFIG_LIMIT, FILE_LIMIT, IMPORT_BATCH, ITEM_BYTES
from ..errors import ModelError, NotEnoughDisk, unreadable
from . import canonical
from .chunkstore import ChunkStore, Progress
from .manifest import (
    COMPANIONS,
    EMBEDDING,
    FILE_LIMITS,
    HEAD,
    NORM,
    QUANTISED,
    Blob,
    Manifest,
    Tensor,
    canonical_config,
    custom_code,
    layer_of,
    plain_config,
    weight_of,
)
from .safetensors import Slice, read_header, read_index

# Raises ShoalError if a tensor is missing, or its shape does not suit the config.
CheckShapes = Callable[[Mapping[str, Sequence[int]]], None]
CheckConfig = Callable[[Mapping[str, object]], CheckShapes]
"""Checks a config, and returns the check of the shapes of its tensors.

Raises ShoalError if this version cannot run a model with this config.
"""

TEXT_FILES = {  # key in a manifest -> name of the file in the folder
    "added_tokens": "added_tokens.json",
    "generation_config": "generation_config.json",
    "special_tokens": "special_tokens_map.json",
    "tokenizer": "tokenizer.json",
    "tokenizer_config": "tokenizer_config.json",
}
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_OTHER_TOKENIZERS = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "merges.txt")
# The tensors of a layer of a model whose family is not verified.
_LAYER_TENSORS = frozenset(
    f"{name}.weight"
    for name in (
        "input_layernorm",
        "post_attention_layernorm",
        *(f"self_attn.{part}_proj" for part in "qkvo"),
        *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
    )
)


@dataclass(frozen=True, slots=True)
class Scan:
    """A checked folder that is ready to be cut into chunks.

    `texts` maps a manifest's key for a file, such as `tokenizer`, to the file's bytes. `weights`
    maps a tensor's name to the slice of a file that has its bytes. `tied` means that config.json
    declares the embedding and the head to be the same tensor.
    """

    config: dict[str, object]
    texts: dict[str, bytes]
    weights: dict[str, Slice]
    tied: bool

    @property
    def size(self) -> int:
        """Bytes of weights to read."""
        return sum(part.size for part in self.weights.values())


async def import_folder(
    host: Host,
    store: ChunkStore,
    folder: Path,
    *,
    progress: Progress | None = None,
    check_config: CheckConfig | None = None,
) -> Manifest:
    """Check a folder, store its chunks, and return its manifest. The manifest is not stored.

    At most `IMPORT_BATCH` bytes of weights are in memory at a time. If an import was interrupted,
    the next one writes only the chunks that are missing. Raises NotEnoughDisk if the model does not
    fit, and ModelError if the folder is invalid (the codes are in docs/spec/model.md).
    """
    scan = await host.offload(scan_folder, host.files, folder, check_config)
    await host.offload(_require_space, store, scan.size)
    chunks: dict[str, list[str]] = {name: [] for name in scan.weights}
    done = 0
    for name, offset, size in _batches(scan.weights):
        chunks[name] += await host.offload(
            _store_batch, host.files, store, scan.weights[name], offset, size
        )
        done += size
        if progress is not None:
            progress(done, scan.size)
    files = await host.offload(_store_texts, store, scan.texts)
    return Manifest(scan.config, files, _tensors(scan, chunks))


def _require_space(store: ChunkStore, size: int) -> None:
    """Check that `size` bytes of weights can be stored. Raises NotEnoughDisk if they cannot."""
    try:
        store.require_space(size)
    except NotEnoughDisk:
        # An interrupted import may already have stored chunks of this model.
        store.require_space(max(0, size - store.used()))


def _batches(weights: Mapping[str, Slice]) -> Iterator[tuple[str, int, int]]:
    """Yield the pieces of weights to read as (tensor, offset, size in bytes), sorted by tensor."""
    for name in sorted(weights):
        for offset in range(0, weights[name].size, IMPORT_BATCH):
            yield name, offset, min(IMPORT_BATCH, weights[name].size - offset)


def _store_batch(files: Files, store: ChunkStore, part: Slice, offset: int, size: int) -> list[str]:
    """Read a piece of a tensor, store its chunks, and return their digests. Blocking.

    Raises ModelError: `unreadable`, or `truncated` if the file has shrunk.
    """
    try:
        data = files.read_range(part.path, part.offset + offset, size)
    except OSError as error:
        raise unreadable(part.path, error) from None
    if len(data) != size:
        raise ModelError("truncated", f"`{part.path}` shrank while it was being read")
    return _store(store, data)


def _store(store: ChunkStore, data: bytes) -> list[str]:
    """Cut bytes into chunks, store them, and return their digests in order."""
    view = memoryview(data)
    return [store.add(view[i : i + CHUNK]) for i in range(0, len(data), CHUNK)]


def _store_texts(store: ChunkStore, texts: Mapping[str, bytes]) -> dict[str, Blob]:
    """Store the text files, and return their descriptions by key. Blocking."""
    return {name: Blob(len(data), tuple(_store(store, data))) for name, data in texts.items()}


def _tensors(scan: Scan, chunks: Mapping[str, list[str]]) -> tuple[Tensor, ...]:
    """Return the tensors of the manifest in order. A tied pair becomes one tensor with two roles.

    Raises ModelError `tied-mismatch` if config.json ties two tensors that differ.
    """
    tied = scan.tied or _equal_pair(scan, chunks)
    if tied and HEAD in scan.weights and not _equal_pair(scan, chunks):
        raise ModelError(
            "tied-mismatch",
            f"config.json ties `{HEAD}` to the embedding, but the folder has a different `{HEAD}`",
            hint="if the head is separate, set `tie_word_embeddings` to false in config.json",
        )
    found = []
    for name, part in scan.weights.items():
        weight = weight_of(name)
        if tied and weight == HEAD:
            continue
        head = HEAD + name.removeprefix(EMBEDDING)
        roles = (head, name) if tied and weight == EMBEDDING else (name,)
        found.append(Tensor(roles, part.dtype, part.shape, tuple(chunks[name])))
    return tuple(sorted(found, key=lambda tensor: tensor.roles))


def _equal_pair(scan: Scan, chunks: Mapping[str, list[str]]) -> bool:
    """Return whether the folder has a head whose dtype, shape and bytes equal the embedding's."""

    def told(weight: str) -> list[tuple[str, str, tuple[int, ...], list[str]]]:
        return [
            (end, part.dtype, part.shape, chunks[weight + end])
            for end in ("", *COMPANIONS)
            if (part := scan.weights.get(weight + end)) is not None
        ]

    return HEAD in scan.weights and told(HEAD) == told(EMBEDDING)


def scan_folder(files: Files, folder: Path, check_config: CheckConfig | None) -> Scan:
    """Check everything that can be checked without reading the weights. Blocking.

    Raises ModelError if the folder is invalid, and the errors of `check_config`.
    """
    names = folder_names(files, folder)
    config = _config(files, folder, names)
    # Check the family first: a config of another family may lack keys without being wrong.
    check_shapes = check_config(config) if check_config is not None else None
    config = canonical_config(config)
    texts = folder_texts(files, folder, names)
    weights = folder_weights(files, folder, names)
    tied = config.get("tie_word_embeddings") is True
    layers = config["num_hidden_layers"]
    assert isinstance(layers, int)  # `canonical_config` has checked it
    if check_shapes is None:
        _check_complete(weights, layers, tied)
    else:
        check_shapes({role: place.shape for role, place in weights.items()})
        # Some families are tied unless their config says otherwise.
        tied = tied or HEAD not in weights
    return Scan(config, texts, weights, tied)


def folder_names(files: Files, folder: Path) -> set[str]:
    """Return the names of the files in the folder.

    Raises ModelError if `folder` is not a folder or cannot be read.
    """
    try:
        names = {entry.name for entry in files.list(folder) if not entry.is_folder}
        absent = not names and not files.list(folder) and files.size(folder) is None
    except NotADirectoryError:
        raise ModelError(
            "not-a-folder",
            f"`{folder}` is a file, not a model folder",
            hint="name the folder that contains config.json",
        ) from None
    except OSError as error:
        raise unreadable(folder, error) from None
    if absent:
        raise ModelError(
            "no-folder",
            f"no folder `{folder}`",
            hint="`shoal model add ./folder` expects a folder that contains config.json",
        )
    return names


def _config(files: Files, folder: Path, names: set[str]) -> dict[str, object]:
    """Return the parsed config.json. Raises ModelError if it is missing or invalid."""
    if "config.json" not in names:
        hint = "name the folder that contains config.json"
        if files.size(folder / "snapshots") is not None:
            hint = f"this is a download cache; name one of the folders in {folder / 'snapshots'}"
        raise ModelError("no-config", f"`{folder}` has no config.json", hint=hint)
    config = json_file(files, folder / "config.json", CONFIG_LIMIT)
    return plain_config(config)


def _read(files: Files, path: Path, limit: int) -> bytes:
    """Read a file of at most `limit` bytes.

    Raises ModelError if the file is empty, too large or unreadable, or a link out of the folder.
    Pipes and devices have size 0, and are therefore refused before they are opened.
    """
    try:
        _check_link(files, path)
        if not files.size(path):
            raise ModelError("empty-file", f"`{path}` is empty")
        return files.read(path, limit=limit)
    except FileTooLarge as error:
        raise ModelError("too-large", error.message) from None
    except OSError as error:
        raise unreadable(path, error) from None


def _check_link(files: Files, path: Path) -> None:
    """Raise ModelError `foreign-link` if a symbolic link leads out of the model's folder.

    Links into the blobs of the Hugging Face download cache that contains the folder are allowed.
    Text files are served to every peer. Without this check, a folder made by a stranger could
    contain a link to a private file of the owner, and importing the folder would publish that file.
    """
    home, real = files.real(path.parent), files.real(path)
    cache = home.parent.parent
    cached = home.parent.name == "snapshots" and cache.name.startswith("models--")
    if real.is_relative_to(home) or (cached and real.is_relative_to(cache / "blobs")):
        return
    raise ModelError(
        "foreign-link",
        f"`{path}` is a link to a file outside the model's folder",
        hint="peers would receive that file; copy it into the folder if it belongs to the model",
    )


def json_file(files: Files, path: Path, limit: int) -> dict[str, object]:
    """Parse a file that must be a JSON object. Raises ModelError `bad-json` if it is not."""
    try:
        value = canonical.parse_json(_read(files, path, limit), depth=CONFIG_DEPTH)
    except ValueError as error:
        raise ModelError(
            "bad-json",
            f"`{path}` is not valid JSON: {error}",
            hint="download the folder again; its files are incomplete",
        ) from None
    if not isinstance(value, dict):
        raise ModelError("bad-json", f"`{path}` is not a JSON object")
    return value


def folder_texts(files: Files, folder: Path, names: set[str]) -> dict[str, bytes]:
    """Return the tokenizer, its settings and the chat template, as bytes by key.

    Raises ModelError if a file is invalid or needs custom code.
    """
    if "tokenizer.json" not in names:
        raise _no_tokenizer(folder, names)
    texts = {
        key: _read(files, folder / name, FILE_LIMITS[key])
        for key, name in TEXT_FILES.items()
        if name in names
    }
    if not texts["tokenizer"].lstrip().startswith(b"{"):
        raise ModelError("bad-json", f"`{folder / 'tokenizer.json'}` is not a JSON object")
    settings = {
        name: json_file(files, folder / name, FILE_LIMIT)
        for name in ("chat_template.json", "tokenizer_config.json", "generation_config.json")
        if name in names
    }
    for name, fields in settings.items():
        if "auto_map" in fields:
            raise custom_code(name)
    template = _template(files, folder, names, list(settings.values()))
    if template:
        texts["chat_template"] = template
    return texts


def _no_tokenizer(folder: Path, names: set[str]) -> ModelError:
    """Return the error for a folder without tokenizer.json."""
    other = [name for name in _OTHER_TOKENIZERS if name in names]
    if not other:
        return ModelError(
            "no-tokenizer",
            f"`{folder}` has no tokenizer.json",
            hint="download the model's tokenizer files into the folder",
        )
    return ModelError(
        "no-tokenizer",
        f"`{folder}` has {', '.join(other)} but no tokenizer.json",
        hint='convert it: python -c "from transformers import AutoTokenizer as T; '
        f"T.from_pretrained('{folder}').save_pretrained('{folder}')\"",
    )


def _template(
    files: Files, folder: Path, names: set[str], settings: list[dict[str, object]]
) -> bytes | None:
    """Return the chat template, or None if there is none.

    The file `chat_template.jinja` takes precedence over the first template in `settings`.
    """
    if "chat_template.jinja" in names:
        limit = FILE_LIMITS["chat_template"]
        return _template_text(folder, _read(files, folder / "chat_template.jinja", limit))
    for fields in settings:
        text = _named_template(fields.get("chat_template"))
        if text is not None:
            return _template_text(folder, text.encode("utf-8", "surrogatepass"))
    return None


def _named_template(value: object) -> str | None:
    """Return the template in the value of a `chat_template` key, or None if there is none.

    The value may be a list of named templates. The one with the name `default` is then returned.
    """
    if isinstance(value, list):
        for item in value:
            if isinstance(item, dict) and item.get("name") == "default":
                value = item.get("template")
    return value if isinstance(value, str) else None


def _template_text(folder: Path, data: bytes) -> bytes:
    """Check the encoding and the size of a chat template, and return it unchanged."""
    try:
        data.decode()
    except UnicodeDecodeError:
        raise ModelError("bad-template", f"the chat template of `{folder}` is not UTF-8") from None
    if len(data) > FILE_LIMITS["chat_template"]:
        raise ModelError("too-large", f"the chat template of `{folder}` is too large")
    return data


def folder_weights(
    files: Files, folder: Path, names: set[str], dtypes: Mapping[str, int] = ITEM_BYTES
) -> dict[str, Slice]:
    """Return the file slice of each tensor, by name. `dtypes` maps allowed dtypes to their bytes.

    Raises ModelError if a tensor is missing.
    """
    if "model.safetensors" in names:
        return read_header(files, folder / "model.safetensors", dtypes)
    if "model.safetensors.index.json" not in names:
        raise _no_weights(folder, names)
    index = read_index(files, folder / "model.safetensors.index.json")
    names = set(index.values())
    headers = {name: read_header(files, folder / name, dtypes) for name in sorted(names)}
    weights = {}
    for role, name in index.items():
        if role in headers[name]:
            weights[role] = headers[name][role]
        elif layer_of(role) is not None or role in (EMBEDDING, NORM, HEAD):
            raise ModelError(
                "missing-tensor",
                f"the index of `{folder}` lists {ascii(role)[:80]} in `{name}`, which lacks it",
                hint="download the folder again",
            )
    return weights


def _no_weights(folder: Path, names: set[str]) -> ModelError:
    """Return the error for a folder without usable safetensors files."""
    pickles = sorted(name for name in names if name.lower().endswith(_PICKLES))
    others = sorted(name for name in names if name.lower().endswith(".safetensors"))
    if others:
        return ModelError(
            "no-weights",
            f"`{folder}` has {ascii(others[0])[:80]}, but neither model.safetensors "
            "nor model.safetensors.index.json",
            hint="download the folder again, with its index",
        )
    if pickles:
        return ModelError(
            "pickle-only",
            f"`{folder}` has its weights only as pickle ({ascii(pickles[0])[:80]}), "
            "and loading a pickle runs code",
            hint="use the model's safetensors version, or, if you trust it, convert it with "
            "`save_pretrained(folder, safe_serialization=True)`",
        )
    return ModelError(
        "no-weights",
        f"`{folder}` has no safetensors weights",
        hint="download model.safetensors, or the index and its files, into the folder",
    )


def _check_complete(weights: Mapping[str, Slice], depth: int, tied: bool) -> None:
    """Check that each of the `depth` layers has every tensor that any layer has.

    Also checks the embedding, the final norm and, unless `tied`, the head. Raises ModelError
    `missing-tensor` if a tensor is missing.
    """
    layers: dict[int, set[str]] = {n: set() for n in range(depth)}
    for name in weights:
        layer = layer_of(name)
        if layer in layers and weight_of(name) == name:  # a layout may differ by layer
            layers[layer].add(name.split(".", 3)[3])
    wanted = _LAYER_TENSORS.union(*layers.values())
    absent = [
        f"model.layers.{layer}.{name}"
        for layer, present in layers.items()
        for name in sorted(wanted - present)
    ]
    ends = [EMBEDDING, NORM] if tied else [EMBEDDING, NORM, HEAD]
    absent += [name for name in ends if name not in weights]
    absent += [
        f"{name}.scale"
        for name, part in weights.items()
        if part.dtype in QUANTISED and name.endswith(".weight") and f"{name}.scale" not in weights
    ]
    if not absent:
        return
    hint = "download the folder again; config.json and the weights do not match"
    if absent == [HEAD]:
        hint = "if the model ties its embeddings, config.json needs `tie_word_embeddings: true`"
    raise ModelError(
        "missing-tensor",
        f"the weights lack {len(absent)} tensors that config.json declares, first `{absent[0]}`",
        hint=hint,
    )
