"""What names mean which models, and who vouches for that."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...transport.identity import PeerId
from .. import defaults
from ..entry import FeedName
from ..record import ModelName
from .fact import read_root, read_text, read_whole
from .view import View


@dataclass(frozen=True, slots=True)
class Meaning:
    """A root that a name means to some, in the order of their peer ids."""

    root: str
    vouchers: tuple[PeerId, ...]


class Models(View[str, ModelName, tuple[Meaning, ...]]):
    """Names and their meanings. Each author gives a name one meaning at most."""

    kinds = ("models",)

    def __init__(self) -> None:
        super().__init__()
        self._by_name: dict[str, dict[PeerId, ModelName]] = {}
        self._by_root: dict[str, dict[tuple[PeerId, str], ModelName]] = {}

    def get(self, subject: str) -> tuple[Meaning, ...] | None:
        """What a name means: the root with the most vouchers first, then by root."""
        vouchers: dict[str, list[PeerId]] = {}
        for peer, model in self._by_name.get(subject, {}).items():
            vouchers.setdefault(model.root, []).append(peer)
        found = [Meaning(root, tuple(sorted(peers))) for root, peers in vouchers.items()]
        found.sort(key=lambda meaning: (-len(meaning.vouchers), meaning.root))
        return tuple(found) or None

    def names(self) -> Iterable[str]:
        """All names, in no order."""
        return self._by_name.keys()

    def roots(self) -> Iterable[str]:
        """All roots that have a name, in no order."""
        return self._by_root.keys()

    def told_of(self, root: str) -> Iterator[tuple[PeerId, ModelName]]:
        """What each member that names a model says of it; a member may have several names."""
        for (peer, _), model in self._by_root.get(root, {}).items():
            yield peer, model

    def of(self, peer: PeerId) -> tuple[ModelName, ...]:
        """What a member names, by name."""
        held = self._said(FeedName(peer, "models", 0))
        return tuple(held[name] for name in sorted(held))

    def _read(self, name: FeedName, key: str, value: Mapping[str, Any]) -> ModelName:
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


def _drop(index: "dict[str, dict[Any, ModelName]]", key: str, inner: object) -> None:
    held = index[key]
    del held[inner]
    if not held:
        del index[key]


def model_fact(model: ModelName) -> dict[str, Any]:
    """The value of an own fact; its key is the name."""
    return {"root": model.root, "layers": model.layers, "bytes": model.weight_bytes}
