"""What a model's name means, and who vouches for it.

A name is a pointer to a root that somebody signed, and anybody may sign any name: it is worth as
much as its vouchers are to who asks. So what was named here comes first, then what members say,
then what the DHT says; where one of these knows several roots for a name they are shown as choices,
and `NAME@HASH` picks. Only all 64 digits of a hash prove anything: eight can be ground in minutes.
Spec: docs/spec/model.md.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final, Protocol

from ..transport import naming
from ..transport.identity import PeerId
from . import defaults
from .errors import ModelError
from .finding import Found
from .key import Key, record_key
from .library import check_name
from .library import unknown as unknown_model
from .manifest import is_digest
from .record import NameBody

KNOWN: Final = "here, among the members or in the swarm's index"
_PREFIX: Final = re.compile(r"[0-9a-f]{1,64}")
_BARE: Final = re.compile(rf"[0-9a-f]{{{defaults.PREFIX_MIN},64}}")


class Source(IntEnum):
    """From where it is known that somebody vouches; the lower comes first."""

    HERE = 0
    MEMBERS = 1
    DHT = 2


@dataclass(frozen=True, slots=True)
class Voucher:
    """`peer` says so; nobody had heard of it from there for `age` seconds when it was found."""

    peer: PeerId
    source: Source
    age: float


@dataclass(frozen=True, slots=True)
class Meaning:
    """A root that a name may mean. `layers` and `size` (bytes) are what the first voucher says of
    it, 0 where that is not known; a root that was asked for by itself has no name."""

    name: str
    root: str
    layers: int = 0
    size: int = 0
    vouchers: tuple[Voucher, ...] = ()

    @property
    def source(self) -> Source:
        """The nearest one."""
        return min((each.source for each in self.vouchers), default=Source.DHT)


@dataclass(frozen=True, slots=True)
class Said:
    """One voucher's word, from whichever source."""

    voucher: Voucher
    body: NameBody


@dataclass(frozen=True, slots=True)
class Asked:
    """`NAME`, `NAME@HASH` or `HASH`: a name, "" for none, and the beginning of a root."""

    name: str
    prefix: str

    def fits(self, name: str, root: str) -> bool:
        return (not self.name or name == self.name) and root.startswith(self.prefix)


class Records(Protocol):
    """What is needed of a `Dht`."""

    async def find(self, key: Key, **how: Any) -> Found: ...


class Names:
    """`here`: the names given here, each with its root; `known`: every root that is known here;
    `told`: what this node and its members say."""

    def __init__(
        self,
        records: Records,
        *,
        own: PeerId,
        here: Callable[[], Mapping[str, str]],
        known: Callable[[], Iterable[str]],
        told: Callable[[], Iterable[tuple[PeerId, NameBody]]],
    ) -> None:
        self._records = records
        self._own = own
        self._here = here
        self._known = known
        self._told = told

    async def resolve(self, text: str, *, timeout: float = defaults.NAME_FIND) -> Meaning:
        """The one model that is meant, with who vouches for it.

        Raises ModelError: `bad-name`, `unknown-model`, `ambiguous-model`.
        """
        asked = self._read(text)
        near = chosen(asked, self._meanings(asked, self._near()))
        if near:
            return _only(text, near)
        said = [*self._near(), *await self._far(asked.name, timeout)]
        if found := chosen(asked, self._meanings(asked, said)):
            return _only(text, found)
        if others := self._meanings(replace(asked, prefix=""), said) if asked.name else []:
            raise other_hash(text, others)
        raise unknown(text, {each.body.name for each in said} | set(self._here()))

    def near(self, text: str) -> list[Meaning]:
        """What it may mean as far as this node and members know. Raises ModelError `bad-name`."""
        return self._meanings(self._read(text), self._near())

    async def meanings(self, text: str, *, timeout: float = defaults.NAME_FIND) -> list[Meaning]:
        """Everything it may mean, by whoever vouches, nearest sources and most vouchers first; at
        most `NAME_MEANINGS`. Raises ModelError `bad-name`."""
        asked = self._read(text)
        return self._meanings(asked, [*self._near(), *await self._far(asked.name, timeout)])

    def _read(self, text: str) -> Asked:
        """Names given here may look like the beginning of a hash."""
        text = naming.normal(text)
        return Asked(text, "") if text in self._here() else read(text)

    def _near(self) -> Iterable[Said]:
        for peer, body in self._told():
            source = Source.HERE if peer == self._own else Source.MEMBERS
            yield Said(Voucher(peer, source, 0.0), body)

    async def _far(self, name: str, timeout: float) -> list[Said]:
        if not name:
            return []
        found = await self._records.find(
            record_key(NameBody.kind, name),
            most=defaults.FIND_MOST,
            enough=defaults.NAME_ENOUGH,
            timeout=timeout,
            kinds=(NameBody.kind,),
        )
        return [
            Said(Voucher(each.record.author, Source.DHT, each.age), each.record.body)
            for each in found.records
            if isinstance(each.record.body, NameBody) and each.record.author != self._own
        ]

    def _meanings(self, asked: Asked, said: Iterable[Said]) -> list[Meaning]:
        """What was said that fits, by root."""
        of_root: dict[tuple[str, str], dict[PeerId, Said]] = {}
        for name, root in self._here().items():
            if asked.fits(name, root):
                of_root[name if asked.name else "", root] = {}
        for each in said:
            if asked.fits(each.body.name, each.body.root):
                name = each.body.name if asked.name else ""
                vouched = of_root.setdefault((name, each.body.root), {})
                vouched.setdefault(each.voucher.peer, each)  # the nearer source comes first
        if not asked.name:
            bare = {asked.prefix} if is_digest(asked.prefix) else set()
            for root in {*self._known(), *bare}:
                if asked.fits("", root):
                    of_root.setdefault(("", root), {})
        found = [self._meaning(name, root, vouched) for (name, root), vouched in of_root.items()]
        found.sort(key=lambda one: (one.source, -len(one.vouchers), one.root))
        return found[: defaults.NAME_MEANINGS]

    def _meaning(self, name: str, root: str, vouched: Mapping[PeerId, Said]) -> Meaning:
        vouchers = [each.voucher for each in vouched.values()]
        if self._here().get(name) == root and self._own not in vouched:
            vouchers.append(Voucher(self._own, Source.HERE, 0.0))
        vouchers.sort(key=lambda voucher: (voucher.source, voucher.age))
        first = next(iter(vouched.values()), None)
        layers, size = (first.body.layers, first.body.size) if first is not None else (0, 0)
        return Meaning(name, root, layers, size, tuple(vouchers))


def read(text: str) -> Asked:
    """What somebody typed. Raises ModelError `bad-name`."""
    name, at, prefix = text.rpartition("@")
    if at:
        if not _PREFIX.fullmatch(prefix):
            raise ModelError(
                "bad-name",
                f"{ascii(text)[:80]} has no hash after its `@`",
                hint="NAME@HASH, with the first of the root's digits (0-9, a-f) or all 64 of them",
            )
        check_name(name)
        return Asked(name, prefix)
    if _BARE.fullmatch(text):
        return Asked("", text)
    check_name(text)
    return Asked(text, "")


def chosen(asked: Asked, meanings: list[Meaning]) -> list[Meaning]:
    """Those of the nearest source; a whole root leaves nothing to choose."""
    if is_digest(asked.prefix):
        return meanings[:1]
    nearest = min((one.source for one in meanings), default=Source.DHT)
    return [one for one in meanings if one.source is nearest]


def _only(text: str, meanings: list[Meaning]) -> Meaning:
    if len(meanings) > 1:
        raise ambiguous(text, meanings)
    return meanings[0]


def spelled(meaning: Meaning, others: Iterable[Meaning] = ()) -> str:
    """`NAME@HASH` with as many digits as tell it from the others, or the digits alone."""
    roots = [other.root for other in others if other.root != meaning.root]
    digits = defaults.PREFIX_MIN
    while digits < 64 and any(root.startswith(meaning.root[:digits]) for root in roots):
        digits += 1
    if not meaning.name:
        return meaning.root[:digits]
    doubt = naming.doubt(meaning.name)
    return f"{naming.spelled(meaning.name)}@{meaning.root[:digits]}" + (doubt and f" ({doubt})")


def ambiguous(text: str, meanings: list[Meaning]) -> ModelError:
    """Several choices, and who vouches for each."""
    shown = [
        f"{spelled(one, meanings)} ({_vouched(one.vouchers)})"
        for one in meanings[: defaults.NAME_CHOICES]
    ]
    more = len(meanings) - len(shown)
    listed = ", ".join(shown) + (f", and {more} more" if more else "")
    return ModelError(
        "ambiguous-model",
        f"{ascii(text)[:80]} means {len(meanings)} models: {listed}",
        hint="say which, as in the list: NAME@HASH",
    )


def _vouched(vouchers: tuple[Voucher, ...]) -> str:
    if not vouchers:
        return "nobody vouches"
    more = f" and {len(vouchers) - 1} more" if len(vouchers) > 1 else ""
    return f"says {vouchers[0].peer}{more}"


def unknown(text: str, names: Iterable[str]) -> ModelError:
    """Nobody who can be asked has heard of it; `names` are what it may have been meant for."""
    hint = "`shoal model list` shows what members name; a whole root needs no name"
    return unknown_model(text, names, f" {KNOWN}", hint=hint)


def other_hash(text: str, meanings: list[Meaning]) -> ModelError:
    """The name is known, but only with other hashes than the one that was asked for."""
    listed = ", ".join(spelled(one, meanings) for one in meanings[: defaults.NAME_CHOICES])
    return ModelError(
        "unknown-model",
        f"no model {ascii(text)[:80]} is known {KNOWN}",
        hint=f"the name is known with another hash: {listed}",
    )
