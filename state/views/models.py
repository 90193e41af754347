"""View of model names: which models each name refers to, according to which members."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ...transport.identity import PeerId
from .. import defaults
from ..feeds.entry import FeedName
from ..membership.record import ModelName
from .fields import read_root, read_text, read_whole
from .view import View

At = TypeVar("At")


@dataclass(frozen=True, slots=True)
class Meaning:
    """A model that a name refers to.

    `vouchers` are the members that use the name for this model, sorted by peer id.
    """

    root: str
    vouchers: tuple[PeerId, ...]


class ModelNames(View[str, ModelName, tuple[Meaning, ...]]):
    """Names, with the models that they refer to. Each member uses a name for at most one model."""

    kinds = ("models",)

    def __init__(self) -> None:
        super().__init__()
        self._by_name: dict[str, dict[PeerId, ModelName]] = {}
        self._by_root: dict[str, dict[tuple[PeerId, str], ModelName]] = {}

    def get(self, subject: str) -> tuple[Meaning, ...] | None:
        """Return the meanings of a name, or None if no member uses the name.

        The meanings are sorted by the number of vouchers, highest first, and then by root.
        """
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
        """Return the roots of all models that have a name, in no particular order."""
        return self._by_root.keys()

    def told_of(self, root: str) -> Iterator[tuple[PeerId, ModelName]]:
        """Yield (member, entry) for each name that a member gives to the model with this root.

        One member may give the model several names.
        """
        for (peer, _), model in self._by_root.get(root, {}).items():
            yield peer, model

    def of(self, peer: PeerId) -> tuple[ModelName, ...]:
        """Return the model names that a member publishes, sorted by name."""
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
    """Return the value of the fact about a model name of this node. The fact's key is the name."""
    return {"root": model.root, "layers": model.layers, "bytes": model.weight_bytes}
