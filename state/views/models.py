"""View of model names: the models that each name refers to, and the members that say so."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ...transport.identity import PeerId
from .. import defaults
from ..feeds.entry import FeedName
from ..membership.record import ModelName
from .fact import read_root, read_text, read_whole
from .view import View

At = TypeVar("At")


@dataclass(frozen=True, slots=True)
class Meaning:
    """A model that a name refers to, with the members that say so, sorted by peer id."""

    root: str
    vouchers: tuple[PeerId, ...]


class Models(View[str, ModelName, tuple[Meaning, ...]]):
    """Names and their meanings. Each author gives a name at most one meaning."""

    kinds = ("models",)

    def __init__(self) -> None:
        super().__init__()
        self._by_name: dict[str, dict[PeerId, ModelName]] = {}
        self._by_root: dict[str, dict[tuple[PeerId, str], ModelName]] = {}

    def get(self, subject: str) -> tuple[Meaning, ...] | None:
        """Return the meanings of a name, sorted by number of vouchers, then by root; None if
        unknown."""
        vouchers: dict[str, list[PeerId]] = {}
        for peer, model in self._by_name.get(subject, {}).items():
            vouchers.setdefault(model.root, []).append(peer)
        found = [Meaning(root, tuple(sorted(peers))) for root, peers in vouchers.items()]
        found.sort(key=lambda meaning: (-len(meaning.vouchers), meaning.root))
        return tuple(found) or None

    def names(self) -> Iterable[str]:
        """Return all names, in no particular order."""
        return self._by_name.keys()

    def roots(self) -> Iterable[str]:
        """Return all roots that have a name, in no particular order."""
        return self._by_root.keys()

    def told_of(self, root: str) -> Iterator[tuple[PeerId, ModelName]]:
        """Yield each member that names a model, with its entry. A member may use several names."""
        for (peer, _), model in self._by_root.get(root, {}).items():
            yield peer, model

    def of(self, peer: PeerId) -> tuple[ModelName, ...]:
        """Return the models that a member names, sorted by name."""
        held = self._said(FeedName(peer, "models", 0))
        return tuple(held[name] for name in sorted(held))

    def _read(self, name: FeedName, key: str, value: Mapping[str, object]) -> ModelName:
        return ModelName(
            name=read_text(key, defaults.NAME_BYTES),
            root=read_root(value.get("root")),
            layers=read_whole(value.get("layers"), defaults.MAX_LAYERS, 1),
            weight_bytes=read_whole(value.get("bytes"), defaults.MAX_BYTES),
        )

    def _replace(
        self, name: FeedName, key: str, old: ModelName | None, new: ModelName | None
    ) -> None:
        if old is not None:
            _drop(self._by_name, key, name.author)
            _drop(self._by_root, old.root, (name.author, key))
        if new is not None:
            self._by_name.setdefault(new.name, {})[name.author] = new
            self._by_root.setdefault(new.root, {})[name.author, new.name] = new
        self._tell(key)


def _drop(index: dict[str, dict[At, ModelName]], key: str, inner: At) -> None:
    held = index[key]
    del held[inner]
    if not held:
        del index[key]


def model_fact(model: ModelName) -> dict[str, object]:
    """Return the fact of an own model name; the key of the fact is the name."""
    return {"root": model.root, "layers": model.layers, "bytes": model.weight_bytes}
