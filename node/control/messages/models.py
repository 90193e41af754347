"""Messages about models and blobs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Never

from .encoding import Ask, FileName, IfKnown, Json, TextBound

NAME_LIMIT: Final = 256  # characters of a model's name or root
Name = Annotated[str, TextBound(NAME_LIMIT)]


@dataclass(frozen=True, slots=True)
class VoucherView:
    """A node that gives a name to a model.

    `source` says where this node learned of it: `here` (its own library), `members` or `dht`.
    `age_s` is the age of the record in seconds.
    """

    peer: str
    source: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model that this node knows.

    `local` says whether this node's library has the model, perhaps not all chunks of it. `complete`
    says whether a chain of members serves all its layers; None means unknown. If no chain does,
    `missing` explains why. `room_tokens` is the number of tokens, of prompt and answer together,
    for which the chain with the most free memory has space; None means unknown.
    """

    name: str
    root: str
    layers: int
    weight_bytes: int
    local: bool
    complete: bool | None
    missing: str | None
    room_tokens: int | None
    vouchers: tuple[VoucherView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel(ModelEntry):
    """A model in the list. `lacks` is the number of its chunks that this node's library does not
    have; None means unknown."""

    lacks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferView:
    """A model that a live member shares. It has no root: its weights are that member's word.

    `called` is the name by which it is asked for: `name`, or NAME@PEER if a model with a root has
    the same name. `context` is in tokens; 0 is unknown. `takes` has the kinds of requests and the
    parameters that its engine honours. `here` says whether this node shares it.
    """

    called: str
    name: str
    peer: str
    engine: str
    context: int
    takes: tuple[str, ...]
    here: bool


@dataclass(frozen=True, slots=True)
class ModelsView:
    """All models that this node or a member of the swarm gives a name to. `shared` are those that
    engines of members serve, and that have no root."""

    models: tuple[ListedModel, ...]
    shared: tuple[OfferView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListModels(Ask[ModelsView, Never]):
    """Request for the list of models."""

    op = "models"


@dataclass(frozen=True, slots=True)
class BytesDone:
    """Event that gives the bytes done so far and in total."""

    done: int
    total: int
    event: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedModel(ModelEntry):
    """A model that was added. If its name meant another model on this node before, `replaced` is
    the root of that model, else None. `notes` are sentences about what was converted."""

    replaced: str | None
    notes: IfKnown[tuple[str, ...]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AddModel(Ask[AddedModel, BytesDone]):
    """Request to add a model.

    `origin` says what `path` is: the absolute path of a folder or a GGUF file (`path`), a name in
    the Ollama store in the folder `place` (`ollama`), or ORG/NAME at the address `place` (`hub`),
    for which `token` may be needed.
    """

    op = "model_add"
    path: Annotated[str, FileName()]
    name: Name | None = None
    origin: Literal["path", "ollama", "hub"] = "path"
    place: Annotated[str, FileName()] | None = None
    token: Annotated[str, TextBound(512)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeModel(Ask[AddedModel, BytesDone]):
    """Request to make a quantised model from one in the library, which is named by a name,
    NAME@HASH or a root. `to` is the precision; `name` is that of the new model."""

    op = "model_quantize"
    model: Name
    to: Literal["int8", "int4"]
    name: Name | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """Event that says which model the requested name means. `name` is None if the model was
    requested by its root."""

    name: str | None
    root: str
    vouchers: tuple[VoucherView, ...]
    event: Literal["resolved"] = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledModel(ModelEntry):
    """A model that was fetched as a whole.

    `fetched` is the number of bytes that came from peers, `peers` the number of peers that sent
    chunks, and `liars` the peers that sent wrong bytes.
    """

    fetched: int
    peers: int
    liars: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PullModel(Ask[PulledModel, Resolved | BytesDone]):
    """Request to fetch a whole model, which is named by a name, NAME@HASH or a root."""

    op = "model_pull"
    name: Name


@dataclass(frozen=True, slots=True)
class ServingNode:
    """A node that serves layers of a model. `layers` has the form `A:B`, where B is exclusive."""

    peer: str
    layers: str
    dtype: str


@dataclass(frozen=True, slots=True)
class OtherMeaning:
    """A different model that has the same name. `name` has the form NAME@HASH, which tells the two
    apart."""

    name: str
    vouchers: tuple[VoucherView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownModel(ModelEntry):
    """A model with the nodes that serve it.

    `config` has selected keys of config.json. `others` has the other models of the same name; it is
    None if no daemon was running to find them.
    """

    providers: tuple[ServingNode, ...]
    config: Mapping[str, Json]
    others: IfKnown[tuple[OtherMeaning, ...]] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowModel(Ask[ShownModel, Never]):
    """Request to describe one model, which is named by a name, NAME@HASH or a root."""

    op = "model_show"
    name: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What removing a model or blob costs the swarm and this disk.

    `removed` says whether it has been removed; if not, this is a preview. `freed` is the disk space
    in bytes. `shared` is the number of chunks that stay because other content needs them.
    `fetched` says whether the content came from other nodes, and `embedded` whether it is the
    embedded model. `copies` is the number of other nodes that claim to hold all of it, and
    `partial` the number of those that claim parts of it; both are None if no daemon was
    running to find out. `linked` says whether this node has any links.
    """

    kind: str
    root: str
    names: tuple[str, ...]
    shared: int
    fetched: bool
    embedded: bool
    freed: int
    copies: int | None
    partial: int | None
    linked: bool
    removed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveModel(Ask[Removed, Never]):
    """Request to remove a model if `sure`, else to describe what its removal would lose."""

    op = "model_rm"
    name: Name
    sure: bool = False


# Blobs.


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveBlob(Ask[Removed, Never]):
    """Request to remove a blob if `sure`, else to describe what its removal would lose."""

    op = "blob_rm"
    root: Name
    sure: bool = False


@dataclass(frozen=True, slots=True)
class BlobView:
    """A blob of this node.

    `size` is in bytes. `missing` is the number of chunks that this node does not have. `own` says
    whether the node's owner added the blob, instead of fetching it.
    """

    root: str
    size: int
    chunks: int
    missing: int
    own: bool


@dataclass(frozen=True, slots=True)
class BlobsView:
    """The list of this node's blobs."""

    blobs: tuple[BlobView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListBlobs(Ask[BlobsView, Never]):
    """Request for the list of this node's blobs."""

    op = "blobs"


@dataclass(frozen=True, slots=True)
class AddedBlob:
    """Root of a blob that was made from a file, and its size in bytes."""

    root: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddBlob(Ask[AddedBlob, BytesDone]):
    """Request to add a file as a blob. The file is given by its absolute path."""

    op = "blob_add"
    path: Annotated[str, FileName()]


@dataclass(frozen=True, slots=True)
class DiskFullWait:
    """Event that says that the disk is full, and that the fetch continues once there is space."""

    message: str
    event: Literal["waiting"] = "waiting"


@dataclass(frozen=True, slots=True)
class FetchedBlob:
    """A blob that was written to a file.

    `fetched` is the number of bytes that came from peers, `peers` the number of peers that sent
    chunks, and `liars` the peers that sent wrong bytes.
    """

    root: str
    size: int
    fetched: int
    peers: int
    liars: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBlob(Ask[FetchedBlob, BytesDone | DiskFullWait]):
    """Request to fetch a blob and write it to a file. An existing file is replaced."""

    op = "blob_get"
    root: Name
    path: Annotated[str, FileName()]
