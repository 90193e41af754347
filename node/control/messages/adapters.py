"""Messages about LoRA adapters."""

from dataclasses import dataclass
from typing import Annotated, Never

from .encoding import Ask, FileName
from .models import BytesDone, Name, Removed


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterView:
    """An adapter in this node's library.

    `base` is the root of its model, and `model` the name of the model here, if it has one. `layers`
    lists the changed layers, such as `0:4, 6:8`. `size` is in bytes. `scale` is the factor of its
    change: alpha / rank, or alpha / sqrt(rank) if `rslora`.
    """

    name: str
    root: str
    base: str
    model: str | None
    rank: int
    alpha: float
    rslora: bool
    scale: float
    dtype: str
    modules: tuple[str, ...]
    layers: str
    size: int


@dataclass(frozen=True, slots=True)
class AdaptersView:
    """The adapters that have a name on this node."""

    adapters: tuple[AdapterView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListAdapters(Ask[AdaptersView, Never]):
    """Request for the list of adapters."""

    op = "adapters"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowAdapter(Ask[AdapterView, Never]):
    """Request to describe one adapter of this node, which is named by a name or a root."""

    op = "adapter_show"
    name: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class AddAdapter(Ask[AdapterView, Never]):
    """Request to import the `peft` folder with this absolute path.

    `model` names the model that it was trained for; without it, the adapter must fit exactly one
    model of this node.
    """

    op = "adapter_add"
    path: Annotated[str, FileName()]
    name: Name | None = None
    model: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullAdapter(Ask[AdapterView, BytesDone]):
    """Request to fetch the adapter with this root from other nodes, and to name it here."""

    op = "adapter_pull"
    root: Name
    name: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAdapter(Ask[Removed, Never]):
    """Request to remove an adapter if `sure`, else to describe what its removal would lose."""

    op = "adapter_rm"
    name: Name
    sure: bool = False
