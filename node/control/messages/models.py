"""Messages about models and blobs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Never

from .encoding import Ask, FileName, IfKnown, Json, Text

NAME_LIMIT: Final = 256  # characters of a model's name or root
Name = Annotated[str, Text(NAME_LIMIT)]


@dataclass(frozen=True, slots=True)
class VoucherView:
    """A node that gives a name to a model. `source` is `here`, `members` or `dht`."""

    peer: str
    source: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model. `complete`: a chain of members serves it, None if unknown; `missing`: why not.

    `room_tokens`: tokens of prompt and answer that the chain with most space can take.
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
    """A model in a list. `lacks`: chunks that this library lacks, None if unknown."""

    lacks: int | None = None


@dataclass(frozen=True, slots=True)
class Models:
    """All models that this node or a member names."""

    models: tuple[ListedModel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListModels(Ask[Models, Never]):
    """Ask for all models."""

    op = "models"


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes done and in total."""

    done: int
    total: int
    event: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedModel(ModelEntry):
    """A model that was added. `replaced`: the root that its name meant here before, or None."""

    replaced: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddModel(Ask[AddedModel, Progress]):
    """Add the model in a folder, given by its absolute path."""

    op = "model_add"
    path: Annotated[str, FileName()]
    name: Name | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """The meaning of the requested name. `name` is None for a model requested by its root."""

    name: str | None
    root: str
    vouchers: tuple[VoucherView, ...]
    event: Literal["resolved"] = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledModel(ModelEntry):
    """A model that was fetched. `fetched` is in bytes, `peers` counts those that sent chunks, and
    `liars` are those that sent wrong bytes."""

    fetched: int
    peers: int
    liars: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PullModel(Ask[PulledModel, Resolved | Progress]):
    """Fetch a whole model, by a name, NAME@HASH or a root."""

    op = "model_pull"
    name: Name


@dataclass(frozen=True, slots=True)
class Holder:
    """A node that serves layers of a model."""

    peer: str
    layers: str
    dtype: str


@dataclass(frozen=True, slots=True)
class OtherMeaning:
    """A different model of the same name; `name` is NAME@HASH."""

    name: str
    vouchers: tuple[VoucherView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownModel(ModelEntry):
    """One model in full. `config` has chosen keys of config.json. `others` is None without a
    daemon."""

    holders: tuple[Holder, ...]
    config: Mapping[str, Json]
    others: IfKnown[tuple[OtherMeaning, ...]] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowModel(Ask[ShownModel, Never]):
    """Describe one model, by a name, NAME@HASH or a root."""

    op = "model_show"
    name: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """The losses of a removal, which has happened if `removed` is true.

    `freed` is in bytes; `shared` counts chunks that stay because other content needs them.
    `copies` counts other nodes that claim all of it, `partial` those that claim parts of it; both
    are None if no daemon could look.
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
    """Say what the removal of a model would lose; remove it if `sure`."""

    op = "model_rm"
    name: Name
    sure: bool = False


# Blobs.


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveBlob(Ask[Removed, Never]):
    """Say what the removal of a blob would lose; remove it if `sure`."""

    op = "blob_rm"
    root: Name
    sure: bool = False


@dataclass(frozen=True, slots=True)
class BlobView:
    """A blob of this node. `size` is in bytes; `own`: this node's owner added it."""

    root: str
    size: int
    chunks: int
    missing: int
    own: bool


@dataclass(frozen=True, slots=True)
class Blobs:
    """The blobs of this node."""

    blobs: tuple[BlobView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListBlobs(Ask[Blobs, Never]):
    """Ask for the blobs of this node."""

    op = "blobs"


@dataclass(frozen=True, slots=True)
class AddedBlob:
    """A file that became a blob of `size` bytes."""

    root: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddBlob(Ask[AddedBlob, Progress]):
    """Add a file, given by its absolute path."""

    op = "blob_add"
    path: Annotated[str, FileName()]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The disk is full, so the fetch waits."""

    message: str
    event: Literal["waiting"] = "waiting"


@dataclass(frozen=True, slots=True)
class FetchedBlob:
    """A blob that was written to a file. The fields are those of `PulledModel`."""

    root: str
    size: int
    fetched: int
    peers: int
    liars: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBlob(Ask[FetchedBlob, Progress | Waiting]):
    """Fetch a blob and write it to a file, which is replaced."""

    op = "blob_get"
    root: Name
    path: Annotated[str, FileName()]
