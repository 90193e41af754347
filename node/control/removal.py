"""Removes models and blobs from a node's library, after it has told the owner what would be lost.

While a root is served or fetched, its removal is refused, so that no removal takes layers from a
running chain. The owner must end the use first. Specified in docs/spec/control.md, `model_rm` and
`blob_rm`.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from ...dht.content.library import Library
from ...dht.errors import ModelError
from ...state.directory import Directory
from ...state.membership.record import MemberRecord
from ...tasks.inference.sources import providers
from ...tasks.serving.slots import Slots
from ...transport.identity import PeerId
from ...transport.shortid import meant
from .. import defaults
from ..daemon.content import ContentParts
from .messages.models import RemoveBlob, Removed, RemoveModel
from .server import Emit, Operation, operation

END_SERVING = (
    "stop the node (`shoal stop`), then repeat the command; afterwards start the node with another "
    "model: `shoal node --model NAME`"
)


class Removal:
    """Control socket operations that remove models and blobs from one node's library."""

    def __init__(self, content: ContentParts, directory: Directory, serving: Slots) -> None:
        self._content = content
        self._library = content.library
        self._directory = directory
        self._serving = serving

    def table(self) -> Mapping[str, Operation]:
        return dict(
            (
                operation(RemoveModel, self.remove_model),
                operation(RemoveBlob, self.remove_blob),
            )
        )

    async def remove_model(self, ask: RemoveModel, _emit: Emit) -> Removed:
        """Remove a model of this library if the request is `sure`, else only describe what its
        removal would lose."""
        return await self.remove_content(model_meant(ask.name, self._library), sure=ask.sure)

    async def remove_blob(self, ask: RemoveBlob, _emit: Emit) -> Removed:
        """Remove a blob of this library if the request is `sure`, else only describe what its
        removal would lose."""
        root = blob_meant(ask.root.lower(), self._library.blobs.roots())
        return await self.remove_content(root, sure=ask.sure)

    async def remove_content(self, root: str, *, sure: bool) -> Removed:
        """Remove a root of this library if `sure`, else only describe what its removal would
        lose."""
        self._check_unused(root)
        loss = await self._loss(root)
        if sure:
            await self._content.quota.remove(root)
            await self._library.usage.save()
        return replace(loss, removed=sure)

    def _check_unused(self, root: str) -> None:
        """Raise ModelError `in-use` if this node serves the root, is about to serve it, or is
        fetching it."""
        name, serving = _called(self._library, root), self._serving
        if root in self._content.exchange.fetching() and not serving.is_for(root):
            raise ModelError(
                "in-use",
                f"{name} is being fetched",
                hint="wait until it is complete, or end the command that fetches it (Ctrl-C)",
            )
        own, members = self._directory.own(), self._directory.members()
        shards = [shard for shard in own.shards if shard.root == root]
        if not shards and not serving.is_for(root):
            return
        what = f"this node is about to serve {name}"
        if shards:
            layers = ", ".join(f"{shard.start}:{shard.stop}" for shard in shards)
            what = f"this node serves layers {layers} of {name}"
            alone = _spelled(only_here(root, members, own.peer))
            what += f"; no other node serves {alone}" if alone else "; others serve them as well"
        raise ModelError("in-use", what, hint=END_SERVING)

    async def _loss(self, root: str) -> Removed:
        """Describe what a removal would lose, including the disk space that it frees and the copies
        that other nodes claim to hold."""
        content = self._content
        whole = await content.providers.replicas(root)
        some = set(providers(root, self._directory)) - whole
        return replace(
            await loss_view(self._library, root),
            freed=await content.quota.freed_by(root),
            copies=len(whole),
            partial=len(some),
            linked=bool(content.inventory.linked()),
        )


async def loss_view(library: Library, root: str) -> Removed:
    """Describe what the removal of a root would lose, as far as the library knows.

    The caller adds the disk space that becomes free and the copies on other nodes. Raises
    ModelError if the root is unknown or damaged.
    """
    own = await library.only_of(root)
    every = await library.parts(root)
    return Removed(
        kind="blob" if root in library.blobs.roots() else "model",
        root=root,
        names=tuple(name for name, known in library.names().items() if known == root),
        shared=len(every) - len(own),
        fetched=root in library.usage.fetched,
        embedded=root == defaults.EMBEDDED_ROOT,
        freed=0,
        copies=None,
        partial=None,
        linked=False,
        removed=False,
    )


def model_meant(text: str, library: Library) -> str:
    """Return the root of the model of this library that `text` names. Raises ModelError if none or
    several match."""
    try:
        return library.resolve(text)
    except ModelError as error:
        if error.code != "unknown-model":
            raise
        raise ModelError(
            error.code,
            f"{ascii(text)[:80]} is not a model on this node's disk",
            hint="`shoal model list` marks models on this disk in the column HERE",
        ) from None


def blob_meant(text: str, roots: Collection[str]) -> str:
    """Return the root among `roots` that begins with `text`. Raises BadId if `text` is too short,
    or if none or several match."""
    return meant(text, roots, "blob", hint="`shoal blob list` shows the roots")


def only_here(
    root: str, members: Mapping[PeerId, MemberRecord], own: PeerId
) -> list[tuple[int, int]]:
    """Return the layers of a model that only this node serves, as a sorted list of ranges (start,
    stop), stop exclusive."""
    mine: list[tuple[int, int]] = []
    rest: list[tuple[int, int]] = []
    for peer, record in members.items():
        spans = mine if peer == own else rest
        spans += [(shard.start, shard.stop) for shard in record.shards if shard.root == root]
    rest.sort()
    ranges: list[tuple[int, int]] = []
    for at, end in sorted(mine):
        for start, stop in rest:
            if at < min(start, end):
                ranges.append((at, min(start, end)))
            at = max(at, stop)
        if at < end:
            ranges.append((at, end))
    return ranges


def _spelled(ranges: list[tuple[int, int]]) -> str:
    return ", ".join(f"{start}:{stop}" for start, stop in ranges)


def _called(library: Library, root: str) -> str:
    names = [name for name, known in library.names().items() if known == root]
    return f"`{names[0] if names else root[:16]}`"
