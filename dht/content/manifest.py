"""Manifest: describes a model without names, file names or signatures. Spec: docs/spec/model.md.

Models with equal weights, configuration and tokenizer have equal manifests and therefore equal
roots, no matter how the weights were split into files.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final

from msgspec import Meta

from ...transport.decoding import read
from ...transport.errors import Undecodable
from ...transport.message import Message, pack
from ..defaults import (
    CHUNK,
    CHUNKS_LIMIT,
    CONFIG_DEPTH,
    CONFIG_LIMIT,
    DIM_LIMIT,
    DIMS_LIMIT,
    FILE_LIMIT,
    ITEM_BYTES,
    LAYERS_LIMIT,
    MANIFEST_LIMIT,
    ROLES_LIMIT,
    TEMPLATE_LIMIT,
    TENSORS_LIMIT,
    TOKENIZER_LIMIT,
)
from ..errors import OTHERS_HINT, ModelError
from . import canonical

FORMAT: Final = "shoal-model/1"
FILE_LIMITS = {  # the files that a manifest may contain, in bytes
    "added_tokens": FILE_LIMIT,
    "chat_template": TEMPLATE_LIMIT,
    "generation_config": FILE_LIMIT,
    "special_tokens": FILE_LIMIT,
    "tokenizer": TOKENIZER_LIMIT,
    "tokenizer_config": FILE_LIMIT,
}
EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"
COMPANIONS = (".scale", ".minimum")
"""Ends of the names of tensors that belong to a quantised weight (docs/spec/quantised.md)."""
QUANTISED = ("I8", "U8")
"""Dtypes that only quantised weights have."""
_TIED = tuple((HEAD + end, EMBEDDING + end) for end in ("", *COMPANIONS))

_DIGEST = re.compile(r"[0-9a-f]{64}")
_ROLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,255}")
_HALF = re.compile("[\ud800-\udfff]")  # a lone surrogate
_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,5})\.")


_Text = Annotated[str, Meta(max_length=256)]


def is_digest(text: object) -> bool:
    """Return whether `text` has 64 lower-case hex digits. Such a text is safe as a file name."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def layer_of(role: str) -> int | None:
    """Return the number of the layer that a parameter belongs to, or None if it is in no layer."""
    found = _LAYER.match(role)
    return int(found[1]) if found else None


def weight_of(role: str) -> str:
    """Return the name of the weight that a tensor belongs to, which is its own unless it is a
    companion of a quantised weight."""
    for end in COMPANIONS:
        if role.endswith(".weight" + end):
            return role.removesuffix(end)
    return role


def canonical_config(config: Mapping[str, object]) -> dict[str, object]:
    """Return the config without keys that describe its origin and not the model.

    Raises ModelError: `custom-code` if the model needs its own code, `bad-config` if the number of
    layers is missing or out of range, or if a value is out of range.
    """
    kept = plain_config(config)
    layers = kept.get("num_hidden_layers")
    if type(layers) is not int or not 1 <= layers <= LAYERS_LIMIT:
        raise ModelError(
            "bad-config",
            f"config.json has no `num_hidden_layers` from 1 to {LAYERS_LIMIT}",
            hint="use a model of a supported family, such as Llama",
        )
    return kept


def plain_config(config: Mapping[str, object]) -> dict[str, object]:
    """Return what `canonical_config` returns, without checking the number of layers.

    Raises ModelError: `custom-code`, `bad-config`.
    """
    if "auto_map" in config:
        raise custom_code("config.json")
    kept = {k: v for k, v in config.items() if k != "transformers_version" and k[:1] != "_"}
    _check_values(kept)
    return kept


def _check_values(config: dict[str, object]) -> None:
    """Raise ModelError `bad-config` if a value cannot be represented by every reader of the config.

    JSON also allows `1e999`, lone surrogates (`"\\ud800"`) and integers of any length.
    """
    waiting: list[object] = [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif not _is_plain(value):
            raise ModelError(
                "bad-config",
                f"config.json has a value out of range: {_brief(value)}",
                hint="use the config.json that the model was published with",
            )


def _is_plain(value: object) -> bool:
    """Return whether a JSON value that is not a container can be represented by any reader."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    return not isinstance(value, str) or _HALF.search(value) is None


def custom_code(where: str) -> ModelError:
    """Return the error for a model that would run its own Python code."""
    return ModelError(
        "custom-code",
        f"{where} asks for custom code (`auto_map`), and shoal runs no code from a model",
        hint="use a model of a supported family, saved without `trust_remote_code`",
    )


class _Blob(Message, frozen=True):
    """A file in an encoded manifest."""

    chunks: memoryview  # digests of 32 bytes each
    size: int


class _Tensor(Message, frozen=True):
    """A tensor in an encoded manifest."""

    chunks: memoryview  # digests of 32 bytes each
    dtype: _Text
    roles: Annotated[tuple[_Text, ...], Meta(min_length=1, max_length=ROLES_LIMIT)]
    shape: Annotated[tuple[int, ...], Meta(max_length=DIMS_LIMIT)]


class _Manifest(Message, frozen=True):
    """An encoded manifest. The keys of its canonical bytes are in the order of these fields.

    The decoder accepts unknown fields, because its error would quote a name that may have
    megabytes. `Manifest.decode` then refuses them, because the bytes are not canonical.
    """

    config: Annotated[bytes, Meta(max_length=CONFIG_LIMIT)]  # JSON
    files: Annotated[dict[_Text, _Blob], Meta(max_length=len(FILE_LIMITS))]
    format: Annotated[str, Meta(max_length=len(FORMAT))]
    tensors: Annotated[tuple[_Tensor, ...], Meta(max_length=TENSORS_LIMIT)]

    def check(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"expected the format `{FORMAT}`")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its parameter names (`roles`), and the chunks of its bytes.

    A tied tensor has two names. `dtype` is a dtype name of safetensors. The bytes are
    little-endian, in C order.
    """

    roles: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_tensor(self.roles, self.dtype, self.shape)
        _check_chunks(self.roles[0], self.size, self.chunks)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return _tensor_bytes(self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class Blob:
    """A file of the model: its size in bytes and its chunks."""

    size: int
    chunks: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_chunks("a file", self.size, self.chunks)


@dataclass(frozen=True)
class Manifest:
    """Description of a model. Every instance follows the rules of docs/spec/model.md.

    The constructor raises ModelError `bad-manifest` if a rule is broken.
    """

    config: dict[str, Any]
    files: Mapping[str, Blob]
    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        if canonical_config(self.config) != self.config:
            raise _bad("the config is not canonical")
        self._check_files()
        self._check_tensors()
        assert self.chunks  # computed now, so that the constructor refuses inconsistent sizes

    def _check_files(self) -> None:
        """Raise ModelError if a file is unknown or too large, or if there is no tokenizer."""
        for name, blob in self.files.items():
            if name not in FILE_LIMITS or blob.size > FILE_LIMITS[name]:
                raise _bad(f"file `{_brief(name)}` is unknown or too large")
        if "tokenizer" not in self.files:
            raise _bad("there is no tokenizer")

    def _check_tensors(self) -> None:
        """Raise ModelError if the tensors are unsorted, repeated, or do not make a whole model."""
        if len(self.tensors) > TENSORS_LIMIT:
            raise _bad(f"more than {TENSORS_LIMIT} tensors")
        firsts = [tensor.roles[0] for tensor in self.tensors]
        if firsts != sorted(firsts):
            raise _bad("the tensors are not in order")
        roles = [role for tensor in self.tensors for role in tensor.roles]
        present = set(roles)
        if len(present) != len(roles):
            raise _bad("two tensors have the same name")
        layers = {layer_of(role) for role in roles}
        for layer in range(self.layers):
            if layer not in layers:
                raise _bad(f"layer {layer} has no tensors")
        for role in (EMBEDDING, NORM, HEAD):
            if role not in present:
                raise _bad(f"`{role}` is missing")
        for tensor in self.tensors:
            role = tensor.roles[0]  # tensors with other names have layouts of their family
            quantised = tensor.dtype in QUANTISED and role.endswith(".weight")
            if quantised and f"{role}.scale" not in present:
                raise _bad(f"`{tensor.roles[0]}` is quantised and has no scale")

    @property
    def layers(self) -> int:
        """Number of layers."""
        layers: int = self.config["num_hidden_layers"]
        return layers

    @cached_property
    def root(self) -> str:
        """SHA-256 of the encoded manifest, as 64 hex digits."""
        return hashlib.sha256(self.encode()).hexdigest()

    @cached_property
    def chunks(self) -> Mapping[str, int]:
        """All chunks with their sizes in bytes, in order and without duplicates.

        The chunks of the files come first, sorted by file name, and then those of the tensors.

        Raises ModelError `bad-manifest` if one chunk has two sizes.
        """
        found: dict[str, int] = {}
        files: list[Tensor | Blob] = [self.files[name] for name in sorted(self.files)]
        for item in files + list(self.tensors):
            for digest, size in chunk_sizes(item):
                if found.setdefault(digest, size) != size:
                    raise _bad(f"chunk {digest[:16]} has two sizes")
        return found

    @property
    def size(self) -> int:
        """Bytes of all chunks. A chunk that occurs several times counts once."""
        return sum(self.chunks.values())

    def encode(self) -> bytes:
        """Return the canonical bytes. Raises ModelError `too-large` if they exceed a limit."""
        config = canonical.dump_json(self.config)
        if len(config) > CONFIG_LIMIT:
            raise ModelError("too-large", f"config.json has more than {CONFIG_LIMIT} bytes")
        files = {
            name: {"chunks": _join(self.files[name].chunks), "size": self.files[name].size}
            for name in sorted(self.files)
        }
        tensors = [_packed(tensor) for tensor in self.tensors]
        data = pack({"config": config, "files": files, "format": FORMAT, "tensors": tensors})
        if len(data) > MANIFEST_LIMIT:
            raise ModelError("too-large", f"the manifest has more than {MANIFEST_LIMIT} bytes")
        return data

    @classmethod
    def decode(cls, data: bytes) -> "Manifest":
        """Decode a manifest from any source, even a hostile one.

        Raises only ModelError: `too-large`, or another code if the manifest is invalid or its bytes
        are not canonical.
        """
        if len(data) > MANIFEST_LIMIT:
            raise ModelError("too-large", f"the manifest has more than {MANIFEST_LIMIT} bytes")
        try:
            told = read(_Manifest, data, limit=MANIFEST_LIMIT)
        except Undecodable as error:
            raise _bad(str(error)) from None
        files = {
            name: Blob(each.size, _split(each.chunks, "a file", each.size))
            for name, each in told.files.items()
        }
        manifest = cls(_read_config(told.config), files, tuple(map(_read_tensor, told.tensors)))
        if manifest.encode() != data:
            raise _bad("its bytes are not canonical")
        return manifest

    def tensors_of(self, embedding: bool, start: int, stop: int, head: bool) -> list[Tensor]:
        """Return the tensors of a shard.

        A shard has the layers `start` (inclusive) to `stop` (exclusive), and optionally the
        embedding and the head. The final norm belongs to the head. If the head is tied to the
        embedding, the tensor of the embedding is returned for both.
        """
        wanted = {EMBEDDING} if embedding else set()
        if head:
            wanted |= {NORM, HEAD}
        return [
            tensor
            for tensor in self.tensors
            if any(
                weight_of(role) in wanted
                or ((n := layer_of(role)) is not None and start <= n < stop)
                for role in tensor.roles
            )
        ]

    def weight_bytes(self, embedding: bool, start: int, stop: int, head: bool) -> int:
        """Return the number of bytes on disk of the tensors that `tensors_of` returns."""
        return sum(tensor.size for tensor in self.tensors_of(embedding, start, stop, head))

    def digests_of(self, embedding: bool, start: int, stop: int, head: bool) -> list[str]:
        """Return the chunks that a node needs to serve a shard: all files, and its tensors."""
        files: list[Tensor | Blob] = [self.files[name] for name in sorted(self.files)]
        items = files + list(self.tensors_of(embedding, start, stop, head))
        return list(dict.fromkeys(digest for item in items for digest in item.chunks))


def chunk_sizes(item: Tensor | Blob) -> Iterable[tuple[str, int]]:
    """Return the chunks of an object, each with its size: `CHUNK` bytes, less for the last one."""
    return (
        (digest, min(CHUNK, item.size - index * CHUNK)) for index, digest in enumerate(item.chunks)
    )


def _bad(why: str) -> ModelError:
    return ModelError("bad-manifest", f"invalid manifest: {why}", hint=OTHERS_HINT)


def _brief(value: object) -> str:
    """Format a value from an untrusted source for a message: printable and short."""
    return ascii(value)[:64]


def _check_roles(roles: Sequence[str]) -> None:
    """Raise ModelError if the names of a tensor are invalid, unsorted or too many."""
    if not 1 <= len(roles) <= ROLES_LIMIT or list(roles) != sorted(set(roles)):
        raise _bad("a tensor must have one or two names, in order")
    for role in roles:
        if not _ROLE.fullmatch(role):
            raise _bad(f"`{_brief(role)}` is not a parameter name")
    if len(roles) == ROLES_LIMIT and tuple(roles) not in _TIED:
        raise _bad("only the embedding and the head may share a tensor")


def _check_tensor(roles: Sequence[str], dtype: str, shape: Sequence[int]) -> None:
    """Raise ModelError if the names, the dtype or the shape of a tensor are invalid."""
    _check_roles(roles)
    if dtype not in ITEM_BYTES:
        raise _bad(f"dtype `{_brief(dtype)}` of `{roles[0]}` is not supported")
    if len(shape) > DIMS_LIMIT or not all(1 <= n < DIM_LIMIT for n in shape):
        raise _bad(f"the shape of `{roles[0]}` is out of range")


def _tensor_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Return the number of bytes of a tensor."""
    return math.prod(shape) * ITEM_BYTES[dtype]


def _check_count(what: str, size: int, chunks: int) -> None:
    """Raise ModelError if an object of `size` bytes does not have this number of chunks."""
    if not 0 < size <= CHUNKS_LIMIT * CHUNK or chunks != -(-size // CHUNK):
        raise _bad(f"the chunks of {what} do not add up to its {size} bytes")


def _check_chunks(what: str, size: int, chunks: Sequence[str]) -> None:
    """Raise ModelError if a chunk list does not fit the object's size or has an invalid digest."""
    _check_count(what, size, len(chunks))
    for digest in chunks:
        if not is_digest(digest):
            raise _bad(f"`{_brief(digest)}` is not a digest")


def _join(chunks: Iterable[str]) -> bytes:
    """Return the digests as bytes, 32 each."""
    return bytes.fromhex("".join(chunks))


def _split(data: memoryview, what: str, size: int) -> tuple[str, ...]:
    """Decode a list of 32-byte digests of an object with `size` bytes.

    Raises ModelError if the length of the list does not fit `size`. The length is checked before
    anything is decoded, because the decoded list takes ten times as much memory.
    """
    if len(data) % 32:
        raise _bad("a chunk list must consist of 32-byte digests")
    _check_count(what, size, len(data) // 32)
    text = data.hex()
    return tuple(text[i : i + 64] for i in range(0, len(text), 64))


def _packed(tensor: Tensor) -> dict[str, object]:
    """Return a tensor in the form in which a manifest encodes it."""
    return {
        "chunks": _join(tensor.chunks),
        "dtype": tensor.dtype,
        "roles": tensor.roles,
        "shape": tensor.shape,
    }


def _read_config(data: bytes) -> dict[str, object]:
    """Parse the config in a manifest. Raises ModelError `bad-manifest` if it is invalid."""
    try:
        config = canonical.parse_json(data, depth=CONFIG_DEPTH)
    except ValueError as error:
        raise _bad(f"the config is invalid: {error}") from None
    if not isinstance(config, dict):
        raise _bad("the config must be a JSON object")
    return config


def _read_tensor(told: _Tensor) -> Tensor:
    """Convert a decoded tensor. Raises ModelError `bad-manifest` if it is invalid."""
    _check_tensor(told.roles, told.dtype, told.shape)
    chunks = _split(told.chunks, told.roles[0], _tensor_bytes(told.dtype, told.shape))
    return Tensor(told.roles, told.dtype, told.shape, chunks)
