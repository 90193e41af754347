"""Messages about models of other engines, which members share and which have no root."""

from dataclasses import dataclass
from typing import Annotated, Final, Never

from .encoding import Ask, Items, TextBound, Whole
from .models import NAME_LIMIT, Name

URL_LIMIT: Final = 256
SHARES_LIMIT: Final = 32  # models in one request
AT_ONCE_LIMIT: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareView:
    """A model that this node shares.

    `model` is its name at the engine at `url`. `offered` says whether the swarm can ask for it now;
    if not, `trouble` says why. `running` and `waiting` are requests at the engine, of which it
    answers `at_once` together. `answered` counts those that ended since the start. `called` is the
    name by which other nodes ask for it: `name`, or NAME@PEER if a model with a root has the same.
    """

    name: str
    called: str
    model: str
    url: str
    local: bool
    engine: str | None
    context: int
    offered: bool
    trouble: str | None
    at_once: int
    running: int
    waiting: int
    answered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesView:
    """The models that this node shares. `audience` are the nodes that may ask for them."""

    shares: tuple[ShareView, ...]
    audience: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListShares(Ask[SharesView, Never]):
    """Request for the models that this node shares."""

    op = "shares"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddShare(Ask[SharesView, Never]):
    """Request to share models of the engine at `url`. The reply lists those that were added.

    `models` are names at the engine: none for its only model, or for all of them with `every`.
    `name` is the name in the swarm of a single one.
    """

    op = "share_add"
    url: Annotated[str, TextBound(URL_LIMIT)]
    models: Annotated[
        tuple[Annotated[str, TextBound(NAME_LIMIT)], ...], Items(0, SHARES_LIMIT)
    ] = ()
    name: Name | None = None
    every: bool = False
    at_once: Annotated[int, Whole(1, AT_ONCE_LIMIT)] = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedShare:
    """A model that is no longer shared."""

    name: str
    model: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopShare(Ask[StoppedShare, Never]):
    """Request to stop sharing a model, which is named by its name in the swarm."""

    op = "share_stop"
    name: Name
