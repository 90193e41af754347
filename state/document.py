"""A feed's document: one pycrdt `Doc` with one root map of facts, written by one author.

pycrdt gets an update only from here, and only after `scan.read_update` has taken it and the
kind's limits allow for what it adds.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from . import defaults
from .errors import BadUpdate
from .kinds import Kind
from .scan import ROOT, Changes, Ledger, fact_bytes, read_update, write_update

if TYPE_CHECKING:
    from pycrdt import Doc, Map


class Document:
    """The document of one epoch of a feed. `client`: `entry.client_of` of it."""

    def __init__(self, kind: Kind, client: int) -> None:
        self.kind = kind
        self._ledger = Ledger(client, kind.keys)
        self._doc, self._map = _new_doc(client)
        self._update_bytes = 0

    def apply(self, update: bytes) -> Changes:
        """Take an update in; returns the keys it changed, None for those it deleted.

        Raises BadUpdate (`bad-update`, `too-large`), and then the document is as it was.
        """
        changes = read_update(self._ledger, update)
        if self._live_bytes_with(changes) > self.kind.live_bytes:
            raise BadUpdate("too-large", "a document would hold more than its kind may")
        if self.named + sum(key not in self._ledger.last for key in changes) > self.kind.keys:
            raise BadUpdate("too-large", "a document would name more keys than its kind may")
        self._doc.apply_update(update)
        self._ledger.record(changes)
        self._update_bytes += len(update)
        return changes

    def write(self, changes: Mapping[str, bytes | None]) -> bytes:
        """The update that makes these changes. It is not applied: `apply` it once it is stored.

        Raises BadUpdate: `bad-update` where it deletes a key that has no value, `too-large`.
        """
        return write_update(self._ledger, changes)

    def get(self, key: str) -> bytes | None:
        """The value of a key."""
        value = self._map.get(key)
        return None if value is None else bytes(value)

    def facts(self) -> dict[str, bytes]:
        """All keys that have a value, sorted."""
        held = self._map.to_py() or {}
        return {key: bytes(held[key]) for key in sorted(held)}

    @property
    def named(self) -> int:
        """Keys that the epoch ever named."""
        return len(self._ledger.last)

    @property
    def live_bytes(self) -> int:
        """What a snapshot has, at most."""
        return self._ledger.live_bytes

    @property
    def shown_memory(self) -> int:
        """Bytes of memory that its facts take in the views, about."""
        ledger = self._ledger
        return (
            defaults.FACT_MEMORY * len(ledger.live) + defaults.FACT_MEMORY_TIMES * ledger.live_bytes
        )

    @property
    def memory(self) -> int:
        """Bytes of memory it takes, about: for the bound on documents that are held at once."""
        items = defaults.DOCUMENT_ITEM_BYTES * self._ledger.clock
        return self._update_bytes + items + defaults.DOCUMENT_KEY_BYTES * (self.named + 1)

    def _live_bytes_with(self, changes: Changes) -> int:
        trial = self._ledger.live_bytes
        for key, value in changes.items():
            trial -= self._ledger.live.get(key, 0)
            trial += 0 if value is None else fact_bytes(key, value)
        return trial


def snapshot(kind: Kind, client: int, facts: Mapping[str, bytes]) -> bytes:
    """The update that begins an epoch with these facts. Raises `BadUpdate("too-large")`."""
    update = write_update(Ledger(client, kind.keys), facts)
    if len(update) > kind.live_bytes or len(facts) > kind.keys:
        raise BadUpdate("too-large", f"these facts are no `{kind.name}` feed")
    return update


def _new_doc(client: int) -> "tuple[Doc[Map[bytes]], Map[bytes]]":
    from pycrdt import Doc, Map  # 60 ms of CPU, which a command that reads no state need not pay

    doc: Doc[Map[bytes]] = Doc(client_id=client)
    return doc, doc.get(ROOT, type=Map)
