"""Control socket operations on the DHT: `dht` and `find`. Specified in docs/spec/control.md."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...dht.content.manifest import is_digest
from ...dht.defaults import PREFIX_MIN
from ...dht.errors import ModelError
from ...dht.finding import Found
from ...dht.kademlia.candidate import Step
from ...dht.kademlia.foundrecords import FoundRecord
from ...dht.names import Asked, Meaning, read, spelled
from ...dht.records.key import Key, distance, key_text, node_key, parse_key, record_key
from ...dht.records.record import BlobBody, NameBody, PeerBody, ShardBody
from ...transport.errors import TransportError
from ...transport.identity import PeerId, parse_peer_id
from ...transport.shortid import COMMON, BadId, meant
from .. import defaults
from ..errors import ControlError
from .server import Emit, Operation

if TYPE_CHECKING:
    from ..daemon.daemon import Node

_KEYS = (
    "a key is a peer id, a model's name or NAME@HASH, a root, or 64 hex digits as "
    "`shoal find --path` shows them"
)
_BITS = 256


@dataclass(frozen=True, slots=True)
class Question:
    """A key, and what its records are about, in words."""

    key: Key
    about: str


class Lookups:
    """Look-ups in one node's DHT."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    def table(self) -> Mapping[str, Operation]:
        return {"dht": self.dht, "find": self.find}

    async def dht(self, _request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        return self._node.discovery.dht.view()

    async def find(self, request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        """Look up a peer, a root or a name. For a name, also find the providers of the models it
        may mean, in a second round if only the DHT knows its meaning."""
        text = _asked(request)
        text = text.lower() if is_digest(text.lower()) else text
        if (peer := self._peer(text)) is not None:
            where = Question(record_key(PeerBody.kind, peer), f"where {peer} is")
            return {"searches": await self._search([where])}
        text = self._blob(text)
        asked, near = _read(text), self._node.names.near(text)[: defaults.FIND_MODELS]
        searches = await self._search([*_about(text, near), *_others(text, asked, near)])
        told = [one for one in _told(searches, asked) if one.root not in {n.root for n in near}]
        if told := told[: max(0, defaults.FIND_MODELS - len(near))]:
            further = _about(text if len(told) == 1 and not near else "", told)
            searches = [*await self._search(further), *searches]
        return {"searches": searches}

    def _peer(self, text: str) -> PeerId | None:
        """Return the peer with this id, or the known one whose id begins so. Raises BadId."""
        if not text.startswith(COMMON):
            return None
        with suppress(TransportError):
            return parse_peer_id(text)
        node = self._node
        known = [*node.directory.members(), *(link.peer for link in node.endpoint.links())]
        return PeerId(meant(text, known, "peer", hint="`shoal peers` shows them"))

    def _blob(self, text: str) -> str:
        """Return the root of this node's blob that begins with `text`, or `text` itself. Raises
        BadId if several blobs match."""
        roots, hint = self._node.library.blobs.roots(), "`shoal blob list` shows them"
        try:
            return meant(text, roots, "blob", hint=hint, least=PREFIX_MIN)
        except BadId as error:
            if error.code == "ambiguous-blob":
                raise
            return text

    async def _search(self, questions: list[Question]) -> list[dict[str, Any]]:
        found = await self._node.discovery.dht.find_many(
            [question.key for question in questions],
            most=defaults.FIND_MOST,
            enough=defaults.FIND_ENOUGH,
            timeout=defaults.FIND_TIME,
        )
        return [self._view(question, found[question.key]) for question in questions]

    def _view(self, question: Question, found: Found) -> dict[str, Any]:
        own = self._node.identity.peer
        return {
            "about": question.about,
            "key": key_text(question.key),
            "took_ms": (found.ended - found.began) * 1000,
            "records": [record_view(each, own) for each in found.records],
            "path": [step_view(each, question.key, found.began) for each in found.path],
        }


def _asked(request: dict[str, Any]) -> str:
    text = request.get("key")
    if not isinstance(text, str) or not 0 < len(text) <= defaults.FIND_KEY:
        what = f"`key` is not a text of 1 to {defaults.FIND_KEY} letters"
        raise ControlError("bad-request", what, hint=_KEYS)
    return text


def _read(text: str) -> Asked:
    """Parse a name or a root. Raises ControlError if `text` cannot be a key."""
    try:
        return read(text)
    except ModelError as error:
        raise ControlError(error.code, error.message, hint=_KEYS) from None


def _about(text: str, meant: list[Meaning]) -> list[Question]:
    """Return the questions about each model: which nodes serve it, which hold its chunks."""
    found = []
    for one in meant:
        words = text if len(meant) == 1 and text else spelled(one, meant)
        found += [
            Question(record_key(ShardBody.kind, one.root), f"nodes that serve layers of {words}"),
            Question(record_key(BlobBody.kind, one.root), f"providers of chunks of {words}"),
        ]
    return found


def _others(text: str, asked: Asked, near: list[Meaning]) -> list[Question]:
    """Return the question for what else `text` may be: a bare key, or a name like a root."""
    if is_digest(asked.prefix) and not asked.name:
        return [Question(parse_key(asked.prefix), "records under this key")]
    if near and not near[0].name:
        return []
    name = asked.name or text
    return [Question(record_key(NameBody.kind, name), f"what {name} means")]


def _told(searches: list[dict[str, Any]], asked: Asked) -> list[Meaning]:
    """Return the meanings in the records of a name, the most vouched for first."""
    said = Counter(
        (each["says"]["name"], each["says"]["root"])
        for search in searches
        for each in search["records"]
        if each["kind"] == NameBody.kind
    )
    return [
        Meaning(name, root)
        for (name, root), _ in sorted(said.items(), key=lambda item: (-item[1], item[0]))
        if asked.name and asked.fits(name, root)
    ]


def record_view(found: FoundRecord, own: str) -> dict[str, Any]:
    """Describe a record and its source: this node itself, a member's record, or the DHT."""
    record = found.record
    source = "dht" if record.sealed else "members"
    if found.by == own:
        source = "here"
    return {
        "kind": record.body.kind,
        "author": record.author,
        "says": record.body.fields(),
        "age_s": found.age,
        "made": record.made,
        "ttl_s": record.ttl,
        "by": found.by if source == "dht" else None,
        "source": source,
    }


def step_view(step: Step, key: Key, began: float) -> dict[str, Any]:
    """Describe one request of a look-up."""
    took = None if step.answered is None else (step.answered - step.asked) * 1000
    shared = _BITS - distance(node_key(step.contact.peer), key).bit_length()
    return {
        "peer": step.contact.peer,
        "shared": shared,
        "hop": step.hop,
        "path": step.path,
        "at_ms": (step.asked - began) * 1000,
        "took_ms": took,
        "answer": _answer(step, key),
        "records": step.handed.get(key, 0),
        "contacts": step.contacts,
    }


def _answer(step: Step, key: Key) -> str:
    """Describe the reply of a peer as far as it concerns one key."""
    if step.answered is None:
        return "not yet"
    if step.outcome in ("records", "contacts", "nothing"):
        return f"records: {step.handed.get(key, 0)}, new contacts: {step.contacts}"
    return step.outcome
