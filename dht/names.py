"""Resolution of a model's name to a root, with the nodes that vouch for the name.

A name is a signed pointer to a root. Any node may sign any name, so a name can be trusted only as
far as its vouchers. Names given on this node take precedence over those that members vouch for, and
these over names in the DHT. If the source with precedence knows several roots, they are listed as
choices, and the user selects one as `NAME@HASH`. Only all 64 digits of a hash identify a model
securely, because a second root with the same eight first digits can be found by trial in minutes.
Spec: docs/spec/model.md.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, Protocol

from ..transport import naming
from ..transport.identity import PeerId
from . import defaults
from .content.manifest import is_digest
from .content.modelnames import check_name
from .content.modelnames import unknown as unknown_model
from .errors import ModelError
from .finding import FindingResult
from .records.key import Key, record_key
from .records.record import NameBody

KNOWN: Final = "here, among the members or in the swarm's index"
_PREFIX: Final = re.compile(r"[0-9a-f]{1,64}")
_BARE: Final = re.compile(rf"[0-9a-f]{{{defaults.PREFIX_MIN},64}}")


class VoucherSource(IntEnum):
    """Where a voucher was found. Lower values take precedence."""

    HERE = 0  # on this node
    MEMBERS = 1  # in a member record
    DHT = 2  # in a record of the DHT


@dataclass(frozen=True, slots=True)
class Voucher:
    """A node that vouches for a name. `age` is the age of its statement when found, in seconds."""

    peer: PeerId
    source: VoucherSource
    age: float


@dataclass(frozen=True, slots=True)
class NameMeaning:
    """A root that a name may mean.

    `layers` and `size` (bytes) are copied from the statement of the first voucher, and are 0 if
    unknown. `name` is "" if the user gave a root instead of a name.
    """

    name: str
    root: str
    layers: int = 0
    size: int = 0
    vouchers: tuple[Voucher, ...] = ()

    @property
    def source(self) -> VoucherSource:
        """The voucher's source with the highest precedence, or the DHT if there are no vouchers."""
        return min((each.source for each in self.vouchers), default=VoucherSource.DHT)


@dataclass(frozen=True, slots=True)
class NameStatement:
    """A voucher's statement, from any source, that a name means a root."""

    voucher: Voucher
    body: NameBody


@dataclass(frozen=True, slots=True)
class NameQuery:
    """Parsed text of a user: `NAME`, `NAME@HASH` or `HASH`.

    `name` is "" if there is none. `prefix` is the beginning of a root, "" if there is none.
    """

    name: str
    prefix: str

    def fits(self, name: str, root: str) -> bool:
        """Return whether the user may have meant the model with this name and root."""
        return (not self.name or name == self.name) and root.startswith(self.prefix)


class NameRecords(Protocol):
    """The part of a `Dht` that name resolution uses."""

    async def find(
        self,
        key: Key,
        *,
        most: int = ...,
        enough: int = ...,
        timeout: float = ...,
        kinds: tuple[str, ...] = ...,
    ) -> FindingResult: ...


class NameResolver:
    """Resolver of names.

    `here` returns the names given on this node, each with its root. `known` returns every root that
    is known on this node. `told` returns the statements of this node and of its members, each with
    the peer that makes it.
    """

    def __init__(
        self,
        records: NameRecords,
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

    async def resolve(self, text: str, *, timeout: float = defaults.NAME_FIND) -> NameMeaning:
        """Return the model that the text means, with its vouchers.

        If this node and its members do not know the model, this looks in the DHT for up to
        `timeout` seconds. Raises ModelError: `bad-name` if the text is invalid, `unknown-model` if
        no source knows the model, `ambiguous-model` if several models match.
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

    def near(self, text: str) -> list[NameMeaning]:
        """Return the matching models that this node and its members know, without asking the DHT.

        Raises ModelError `bad-name` if the text is invalid.
        """
        return self._meanings(self._read(text), self._near())

    def named(self) -> set[str]:
        """Return the names of all models that this node and its members know."""
        return {*self._here(), *(body.name for _, body in self._told())}

    async def meanings(
        self, text: str, *, timeout: float = defaults.NAME_FIND
    ) -> list[NameMeaning]:
        """Return all models that the text may mean, at most `NAME_MEANINGS`.

        They are sorted by the precedence of their source, then by the number of vouchers, most
        first. The query to the DHT takes at most `timeout` seconds. Raises ModelError `bad-name` if
        the text is invalid.
        """
        asked = self._read(text)
        return self._meanings(asked, [*self._near(), *await self._far(asked.name, timeout)])

    def _read(self, text: str) -> NameQuery:
        """Parse the text of a user.

        A name given on this node is read as a name even if it looks like a hash.
        """
        text = naming.normal(text)
        return NameQuery(text, "") if text in self._here() else read(text)

    def _near(self) -> Iterable[NameStatement]:
        """Yield the statements of this node and of its members."""
        for peer, body in self._told():
            source = VoucherSource.HERE if peer == self._own else VoucherSource.MEMBERS
            yield NameStatement(Voucher(peer, source, 0.0), body)

    async def _far(self, name: str, timeout: float) -> list[NameStatement]:
        """Find the statements about a name in the DHT, except this node's own.

        Returns [] if `name` is "".
        """
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
            NameStatement(
                Voucher(each.record.author, VoucherSource.DHT, each.age), each.record.body
            )
            for each in found.records
            if isinstance(each.record.body, NameBody) and each.record.author != self._own
        ]

    def _meanings(self, asked: NameQuery, said: Iterable[NameStatement]) -> list[NameMeaning]:
        """Group the statements that match by name and root, and return a sorted list of meanings.

        `said` must list the statements of sources with precedence first.
        """
        of_root: dict[tuple[str, str], dict[PeerId, NameStatement]] = {}
        for name, root in self._here().items():
            if asked.fits(name, root):
                of_root[name if asked.name else "", root] = {}
        for each in said:
            if asked.fits(each.body.name, each.body.root):
                name = each.body.name if asked.name else ""
                vouched = of_root.setdefault((name, each.body.root), {})
                vouched.setdefault(each.voucher.peer, each)  # `said` lists nearer sources first
        if not asked.name:
            bare = {asked.prefix} if is_digest(asked.prefix) else set()
            for root in sorted({*self._known(), *bare}):
                if asked.fits("", root):
                    of_root.setdefault(("", root), {})
        found = [self._meaning(name, root, vouched) for (name, root), vouched in of_root.items()]
        found.sort(key=lambda one: (one.source, -len(one.vouchers), one.root))
        return found[: defaults.NAME_MEANINGS]

    def _meaning(
        self, name: str, root: str, vouched: Mapping[PeerId, NameStatement]
    ) -> NameMeaning:
        """Combine the statements about one name and root."""
        vouchers = [each.voucher for each in vouched.values()]
        if self._here().get(name) == root and self._own not in vouched:
            vouchers.append(Voucher(self._own, VoucherSource.HERE, 0.0))
        vouchers.sort(key=lambda voucher: (voucher.source, voucher.age))
        first = next(iter(vouched.values()), None)
        layers, size = (first.body.layers, first.body.size) if first is not None else (0, 0)
        return NameMeaning(name, root, layers, size, tuple(vouchers))


def read(text: str) -> NameQuery:
    """Parse a name, a hash, or `NAME@HASH`. Raises ModelError `bad-name` if the text is neither."""
    name, at, prefix = text.rpartition("@")
    if at:
        if not _PREFIX.fullmatch(prefix):
            raise ModelError(
                "bad-name",
                f"{ascii(text)[:80]} has no hash after its `@`",
                hint="use NAME@HASH, with the first digits of the root (0-9, a-f) or all 64",
            )
        check_name(name)
        return NameQuery(name, prefix)
    if _BARE.fullmatch(text):
        return NameQuery("", text)
    check_name(text)
    return NameQuery(text, "")


def chosen(asked: NameQuery, meanings: list[NameMeaning]) -> list[NameMeaning]:
    """Return those meanings whose source takes precedence.

    If the user gave all 64 digits of a root, at most one meaning is returned.
    """
    if is_digest(asked.prefix):
        return meanings[:1]
    nearest = min((one.source for one in meanings), default=VoucherSource.DHT)
    return [one for one in meanings if one.source is nearest]


def _only(text: str, meanings: list[NameMeaning]) -> NameMeaning:
    """Return the only meaning. Raises ModelError `ambiguous-model` if there are several."""
    if len(meanings) > 1:
        raise ambiguous(text, meanings)
    return meanings[0]


def spelled(meaning: NameMeaning, others: Iterable[NameMeaning] = ()) -> str:
    """Format a meaning as `NAME@HASH`, or as a hash if it has no name.

    The hash has as many digits as are needed to distinguish the root from those of `others`.
    """
    roots = [other.root for other in others if other.root != meaning.root]
    digits = defaults.PREFIX_MIN
    while digits < 64 and any(root.startswith(meaning.root[:digits]) for root in roots):
        digits += 1
    if not meaning.name:
        return meaning.root[:digits]
    doubt = naming.doubt(meaning.name)
    return f"{naming.spelled(meaning.name)}@{meaning.root[:digits]}" + (doubt and f" ({doubt})")


def ambiguous(text: str, meanings: list[NameMeaning]) -> ModelError:
    """Return the error for a text that matches several models. It lists the vouchers of each."""
    shown = [
        f"{spelled(one, meanings)} ({_vouched(one.vouchers)})"
        for one in meanings[: defaults.NAME_CHOICES]
    ]
    more = len(meanings) - len(shown)
    listed = ", ".join(shown) + (f", and {more} more" if more else "")
    return ModelError(
        "ambiguous-model",
        f"{ascii(text)[:80]} matches {len(meanings)} models: {listed}",
        hint="name one of them as NAME@HASH",
    )


def _vouched(vouchers: tuple[Voucher, ...]) -> str:
    """Format the vouchers of a meaning for a message."""
    if not vouchers:
        return "no vouchers"
    more = f" and {len(vouchers) - 1} more" if len(vouchers) > 1 else ""
    return f"from {vouchers[0].peer}{more}"


def unknown(text: str, names: Iterable[str]) -> ModelError:
    """Return the error for a name that no source knows.

    The message suggests the most similar one of `names`.
    """
    hint = "`shoal model list` lists the models of members; a full root hash also works"
    return unknown_model(text, names, f" {KNOWN}", hint=hint)


def other_hash(text: str, meanings: list[NameMeaning]) -> ModelError:
    """Return the error for a `NAME@HASH` whose name is known only with other hashes."""
    listed = ", ".join(spelled(one, meanings) for one in meanings[: defaults.NAME_CHOICES])
    return ModelError(
        "unknown-model",
        f"no model {ascii(text)[:80]} is known {KNOWN}",
        hint=f"the name is known with another hash: {listed}",
    )
