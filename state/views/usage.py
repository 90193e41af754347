"""View of usage: how much each client used other members' computers, as the providers report, and
how much work of others each member has checked.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...transport.identity import PeerId
from .. import defaults
from ..feeds.entry import FeedName
from .fields import read_peer, read_root, read_whole
from .view import View

Usages = Mapping[tuple[PeerId, str], "UsageCount"]


@dataclass(frozen=True, slots=True)
class UsageCount:
    """The requests, tokens and busy time that one provider has counted since its feed began."""

    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    busy_ms: int = 0  # busy time of its device

    def __add__(self, other: "UsageCount") -> "UsageCount":
        return UsageCount(
            self.requests + other.requests,
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            self.busy_ms + other.busy_ms,
        )

    def __sub__(self, other: "UsageCount") -> "UsageCount":
        return self + UsageCount(
            -other.requests, -other.tokens_in, -other.tokens_out, -other.busy_ms
        )


@dataclass(frozen=True, slots=True)
class CheckedWork:
    """What one member has found by recomputing rows of jobs that another peer did.

    `rows` were right. `ms` is the predicted time of the pieces with these rows, in milliseconds.
    `wrong` lies were found, the last of them at `at`, in seconds since 1970.
    """

    rows: int = 0
    ms: int = 0
    wrong: int = 0
    at: int = 0


class Usage(View[PeerId, UsageCount | CheckedWork, UsageCount]):
    """Counts by client, provider and model; and checked work by member and peer.

    A count is only a claim of its provider. Therefore it is listed under the provider's id, and
    each client's total over all providers is available too.
    """

    kinds = ("usage",)

    def __init__(self) -> None:
        super().__init__()
        self._by_client: dict[PeerId, dict[tuple[PeerId, str], UsageCount]] = {}
        self._totals: dict[PeerId, UsageCount] = {}
        self._checked: dict[PeerId, dict[PeerId, CheckedWork]] = {}  # by member that has checked

    def get(self, subject: PeerId) -> UsageCount | None:
        """Return a client's total use over all providers, or None if no provider reports any."""
        return self._totals.get(subject)

    def clients(self) -> Iterable[PeerId]:
        """Return all clients that have used anything, in no particular order."""
        return self._totals.keys()

    def of(self, client: PeerId) -> Usages:
        """Return a client's use by (provider, root of the model).

        The mapping changes with the view.
        """
        return self._by_client.get(client, {})

    def checked_by(self, member: PeerId) -> Mapping[PeerId, CheckedWork]:
        """Return what a member says that it has checked, by the peer that did the work.

        The mapping changes with the view.
        """
        return self._checked.get(member, {})

    def checks_of(self, peer: PeerId) -> Iterator[tuple[PeerId, CheckedWork]]:
        """Yield what each member says of the work of a peer that it has checked."""
        for member, checked in self._checked.items():
            if peer in checked:
                yield member, checked[peer]

    def _read(
        self, name: FeedName, key: str, value: Mapping[str, object]
    ) -> UsageCount | CheckedWork:
        if peer_of_key(key) is not None:
            return read_checked(value)
        _split(key)
        return UsageCount(
            requests=read_whole(value.get("requests", 0), defaults.MAX_COUNT),
            tokens_in=read_whole(value.get("in", 0), defaults.MAX_COUNT),
            tokens_out=read_whole(value.get("out", 0), defaults.MAX_COUNT),
            busy_ms=read_whole(value.get("busy", 0), defaults.MAX_COUNT),
        )

    def _replace(
        self,
        name: FeedName,
        key: str,
        old: UsageCount | CheckedWork | None,
        new: UsageCount | CheckedWork | None,
    ) -> None:
        if (peer := peer_of_key(key)) is not None:
            self._replace_checked(name.author, peer, new)
            return
        assert not isinstance(old, CheckedWork) and not isinstance(new, CheckedWork)
        client, root = _split(key)
        counts = self._by_client.setdefault(client, {})
        if new is None:
            del counts[name.author, root]
        else:
            counts[name.author, root] = new
        if counts:
            before = self._totals.get(client, _NOTHING)
            self._totals[client] = before - (old or _NOTHING) + (new or _NOTHING)
        else:
            del self._by_client[client], self._totals[client]
        self._tell(client)

    def _replace_checked(
        self, member: PeerId, peer: PeerId, new: UsageCount | CheckedWork | None
    ) -> None:
        checked = self._checked.setdefault(member, {})
        if isinstance(new, CheckedWork):
            checked[peer] = new
        else:
            checked.pop(peer, None)
        if not checked:
            del self._checked[member]


_NOTHING = UsageCount()
CHECKED = "checked/"
"""Beginning of the keys of facts about checked work."""


def usage_key(client: PeerId, root: str) -> str:
    """Return the key of the fact about a client's use of a model."""
    return f"{client}/{root}"


def usage_fact(count: UsageCount) -> dict[str, object]:
    """Return the value of the fact with these counts."""
    return {
        "requests": count.requests,
        "in": count.tokens_in,
        "out": count.tokens_out,
        "busy": count.busy_ms,
    }


def _split(key: str) -> tuple[PeerId, str]:
    client, _, root = key.partition("/")
    return read_peer(client), read_root(root)


def checked_key(peer: PeerId) -> str:
    """Return the key of the fact about work of a peer that this node has checked."""
    return CHECKED + peer


def peer_of_key(key: str) -> PeerId | None:
    """Return the peer of a key from `checked_key`, or None for another key.

    Raises BadFact if the peer is malformed.
    """
    return read_peer(key.removeprefix(CHECKED)) if key.startswith(CHECKED) else None


def checked_fact(work: CheckedWork) -> dict[str, object]:
    """Return the value of the fact about checked work."""
    fact = {"rows": work.rows, "ms": work.ms, "wrong": work.wrong, "at": work.at}
    return {name: value for name, value in fact.items() if value}


def read_checked(value: Mapping[str, object]) -> CheckedWork:
    """Read a fact about checked work. Raises BadFact if it is malformed."""
    most = defaults.MAX_COUNT
    return CheckedWork(
        rows=read_whole(value.get("rows", 0), most),
        ms=read_whole(value.get("ms", 0), most),
        wrong=read_whole(value.get("wrong", 0), most),
        at=read_whole(value.get("at", 0), most),
    )
