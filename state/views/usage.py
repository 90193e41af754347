"""View of usage: how much each client used other members' computers, as the providers report."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...transport.identity import PeerId
from .. import defaults
from ..feeds.entry import FeedName
from .view import View, read_peer, read_root, read_whole

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


class Usage(View[PeerId, UsageCount, UsageCount]):
    """Counts by client, provider and model.

    A count is only a claim of its provider. Therefore it is listed under the provider's id, and
    each client's total over all providers is available too.
    """

    kinds = ("usage",)

    def __init__(self) -> None:
        super().__init__()
        self._by_client: dict[PeerId, dict[tuple[PeerId, str], UsageCount]] = {}
        self._totals: dict[PeerId, UsageCount] = {}

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

    def _read(self, name: FeedName, key: str, value: Mapping[str, object]) -> UsageCount:
        _split(key)
        return UsageCount(
            requests=read_whole(value.get("requests", 0), defaults.MAX_COUNT),
            tokens_in=read_whole(value.get("in", 0), defaults.MAX_COUNT),
            tokens_out=read_whole(value.get("out", 0), defaults.MAX_COUNT),
            busy_ms=read_whole(value.get("busy", 0), defaults.MAX_COUNT),
        )

    def _replace(
        self, name: FeedName, key: str, old: UsageCount | None, new: UsageCount | None
    ) -> None:
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


_NOTHING = UsageCount()


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
