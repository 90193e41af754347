"""View of the members of the swarm, with the capacity, the kinds of jobs and the models of other
engines that each publishes.

This view does not say which members are live. Liveness is measured, and never read from feeds.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import astuple

from ...transport.decoding import typed
from ...transport.errors import Undecodable
from ...transport.identity import PeerId
from .. import defaults
from ..errors import BadFact
from ..feeds.entry import FeedName
from ..membership.record import NOTHING, Capacity, DeviceSpeed, LinkSpeed, SharedModel
from ..replication.vouches import VOUCHES
from .fields import read_each, read_rate, read_text, read_whole
from .view import View

ABOUT = "about"
"""Key of the fact with the version of shoal that a member runs."""
CAPACITY = "capacity"
JOBS = "jobs"
"""Key of the fact with the kinds of jobs that a member does."""
SHARED = "shared"
"""Key of the fact with the models of other engines that a member offers."""
LINKS = "links"
"""Key of the fact with the links of a member that it has measured."""
_PLOT: Final = ("member", 0)


@dataclass(frozen=True, slots=True)
class Member:
    """A member as it describes itself in its `member` feed."""

    peer: PeerId
    version: str = ""
    capacity: Capacity = NOTHING
    jobs: tuple[str, ...] = ()
    shared: tuple[SharedModel, ...] = ()
    links: tuple[LinkSpeed, ...] = ()


@dataclass(frozen=True, slots=True)
class _Links:
    """The links of the fact `links`, of which no two lead to the same member."""

    links: tuple[LinkSpeed, ...]


@dataclass(frozen=True, slots=True)
class _Shared:
    """The models of the fact `shared`, of which no two have the same name."""

    models: tuple[SharedModel, ...]


Said = str | Capacity | tuple[str, ...] | _Shared | _Links


class Members(View[PeerId, Said, Member]):
    """Members by peer id.

    A member is listed if its `member` feed has any fact that this version knows.
    """

    kinds = ("member",)

    def changed(self, name: FeedName, key: str, value: Mapping[str, object] | None) -> None:
        """Set a fact, or remove it if `value` is None.

        The fact `vouches` is skipped, because the replica reads it.
        """
        if key != VOUCHES:
            super().changed(name, key, value)

    def get(self, subject: PeerId) -> Member | None:
        """Return a member, assembled from its facts, or None if it has none."""
        facts = self._said(FeedName(subject, "member", 0))
        if not facts:
            return None
        version, capacity, jobs = facts.get(ABOUT), facts.get(CAPACITY), facts.get(JOBS)
        shared, links = facts.get(SHARED), facts.get(LINKS)
        return Member(
            subject,
            version if isinstance(version, str) else "",
            capacity if isinstance(capacity, Capacity) else NOTHING,
            jobs if isinstance(jobs, tuple) else (),
            shared.models if isinstance(shared, _Shared) else (),
            links.links if isinstance(links, _Links) else (),
        )

    def __len__(self) -> int:
        return len(self.facts.get(_PLOT, ()))

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self.facts.get(_PLOT, ()))

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self.facts.get(_PLOT, ())

    def _read(self, name: FeedName, key: str, value: Mapping[str, object]) -> Said:
        if key == ABOUT:
            return read_text(value.get("version", ""), defaults.VERSION_BYTES)
        if key == CAPACITY:
            return Capacity(
                cores=read_whole(value.get("cores", 0), defaults.MAX_CORES),
                memory_bytes=read_whole(value.get("memory", 0), defaults.MAX_BYTES),
                engine=value.get("engine") is True,
                load_rate=read_rate(value.get("load", 0.0), defaults.MAX_RATE),
                devices=read_each(value.get("devices", []), defaults.DEVICES, _device),
            )
        if key == JOBS:
            return read_each(value.get("kinds"), defaults.JOB_KINDS, _kind)
        if key == SHARED:
            return _shared(value)
        if key == LINKS:
            return _links(value)
        raise BadFact("this version does not know a fact of a member")

    def _replace(self, name: FeedName, key: str, old: Said | None, new: Said | None) -> None:
        self._tell(name.author)


def _kind(value: object) -> str:
    return sys.intern(read_text(value, defaults.JOB_KIND_BYTES))


def _device(value: object) -> DeviceSpeed:
    try:
        return typed(DeviceSpeed, value)
    except Undecodable as error:
        raise BadFact(f"malformed device: {error}") from None


def _shared(value: Mapping[str, object]) -> _Shared:
    models = read_each(value.get("models"), defaults.SHARED, _shared_model)
    if len({model.name for model in models}) < len(models):
        raise BadFact("a member shares two models under one name")
    return _Shared(models)


def _shared_model(value: object) -> SharedModel:
    try:
        return typed(SharedModel, value)
    except Undecodable as error:
        raise BadFact(f"malformed shared model: {error}") from None


def _links(value: Mapping[str, object]) -> _Links:
    links = read_each(value.get("links"), defaults.LINKS, _link)
    if len({link.tag for link in links}) < len(links):
        raise BadFact("a member reports two links to one other")
    return _Links(links)


def _link(value: object) -> LinkSpeed:
    try:
        return typed(LinkSpeed, value)
    except Undecodable as error:
        raise BadFact(f"malformed link: {error}") from None


def links_fact(links: Sequence[LinkSpeed]) -> dict[str, object]:
    """Return the value of the fact `links`, which lists links that this node has measured."""
    return {"links": [list(astuple(link)) for link in links]}


def shared_fact(models: Sequence[SharedModel]) -> dict[str, object]:
    """Return the value of the fact `shared`, which lists models of other engines."""
    return {"models": [list(astuple(model)) for model in models]}


def jobs_fact(kinds: Sequence[str]) -> dict[str, object]:
    """Return the value of the fact `jobs`, which lists the kinds of jobs that this node does."""
    return {"kinds": list(kinds)}


def capacity_fact(capacity: Capacity) -> dict[str, object]:
    """Return the value of the fact `capacity`."""
    return {
        "cores": capacity.cores,
        "memory": capacity.memory_bytes,
        "engine": capacity.engine,
        "load": capacity.load_rate,
        "devices": [list(astuple(device)) for device in capacity.devices],
    }
