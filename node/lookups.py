"""What the control socket can be asked about the DHT; docs/spec/control.md."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..dht.errors import ModelError
from ..dht.finding import Found
from ..dht.key import Key, distance, key_text, node_key, parse_key, record_key
from ..dht.lookup import FoundRecord, Step
from ..dht.record import BlobBody, NameBody, PeerBody, ShardBody
from ..tasks.models import resolve
from ..transport.errors import TransportError
from ..transport.identity import parse_peer_id
from . import defaults
from .control import Emit, Operation
from .errors import ControlError

if TYPE_CHECKING:
    from .daemon import Node

_HEX = re.compile(r"[0-9a-f]{64}")
_BITS = 256


@dataclass(frozen=True, slots=True)
class Question:
    """A key, and what its records are about, in words."""

    key: Key
    about: str


class Lookups:
    """The operations over one node's DHT."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    def table(self) -> Mapping[str, Operation]:
        return {"dht": self.dht, "find": self.find}

    async def dht(self, _request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        return self._node.discovery.dht.view()

    async def find(self, request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        questions = self._questions(_asked(request))
        found = await self._node.discovery.dht.find_many(
            [question.key for question in questions],
            most=defaults.FIND_MOST,
            enough=defaults.FIND_ENOUGH,
            timeout=defaults.FIND_TIME,
        )
        return {"searches": [self._view(question, found[question.key]) for question in questions]}

    def _questions(self, text: str) -> list[Question]:
        """The keys that a text may mean, each once."""
        try:
            peer = parse_peer_id(text)
        except TransportError:
            pass
        else:
            return [Question(record_key(PeerBody.kind, peer), f"where {peer} is")]
        listed = self._of_model(text)
        if _HEX.fullmatch(text):
            listed.append(Question(parse_key(text), "what lies under this key"))
        return list({question.key: question for question in listed}.values())

    def _of_model(self, text: str) -> list[Question]:
        """A name or a root, known here or not; of NAME@HASH both."""
        name = text.rpartition("@")[0] or text
        found = []
        try:
            root = resolve(text, self._node.library, self._node.directory)
        except ModelError as error:
            if error.code == "ambiguous-model":
                raise
            root = text if _HEX.fullmatch(text) else ""
        if root:
            found = [
                Question(record_key(ShardBody.kind, root), f"who serves layers of {text}"),
                Question(record_key(BlobBody.kind, root), f"who holds chunks of {text}"),
            ]
        if not _HEX.fullmatch(text):
            found.append(Question(record_key(NameBody.kind, name), f"what {name} means"))
        return found

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
        raise ControlError(
            "bad-request", f"`key` is not a text of 1 to {defaults.FIND_KEY} letters"
        )
    return text


def record_view(found: FoundRecord, own: str) -> dict[str, Any]:
    """One record, and from where this node has it: itself, a member's own word, or the DHT."""
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
    """One question of a look-up."""
    took = None if step.answered is None else (step.answered - step.asked) * 1000
    shared = _BITS - distance(node_key(step.contact.peer), key).bit_length()
    return {
        "peer": step.contact.peer,
        "shared": shared,
        "hop": step.hop,
        "path": step.path,
        "at_ms": (step.asked - began) * 1000,
        "took_ms": took,
        "answer": _answer(step),
        "records": step.records,
        "contacts": step.contacts,
    }


def _answer(step: Step) -> str:
    if step.answered is None:
        return "not yet"
    if step.outcome in ("records", "contacts", "nothing"):
        return f"records: {step.records}, new contacts: {step.contacts}"
    return step.outcome
