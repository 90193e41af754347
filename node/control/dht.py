"""Control socket operations on the DHT: `dht` and `find`. Specified in docs/spec/control.md."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from ...dht.content.blobs import Blobs
from ...dht.content.manifest import is_digest
from ...dht.defaults import PREFIX_MIN
from ...dht.errors import ModelError
from ...dht.figures import DhtFigures
from ...dht.finding import FindingResult
from ...dht.lookup.candidate import LookupStep
from ...dht.lookup.foundrecords import FoundRecord
from ...dht.names import NameMeaning, NameQuery, NameResolver, read, spelled
from ...dht.records.key import Key, distance, key_text, node_key, parse_key, record_key
from ...dht.records.record import BlobBody, NameBody, PeerBody, ShardBody
from ...dht.service import Dht
from ...state.directory import Directory
from ...transport.dial.endpoint import Endpoint
from ...transport.errors import TransportError
from ...transport.identity import PeerId, parse_peer_id
from ...transport.shortid import COMMON, BadId, meant
from .. import defaults
from ..errors import ControlError
from .messages import dht as messages
from .messages.encoding import object_of
from .server import Emit, Operation, operation

_BITS = 256  # length of a DHT key


@dataclass(frozen=True, slots=True)
class Question:
    """A DHT key to look up, and a short text for a person that says what the records under it are
    about."""

    key: Key
    about: str


class Lookups:
    """Control socket operations that look up records in the DHT for one node."""

    def __init__(
        self, dht: Dht, names: NameResolver, blobs: Blobs, directory: Directory, endpoint: Endpoint
    ) -> None:
        self._dht = dht
        self._names = names
        self._blobs = blobs
        self._directory = directory
        self._endpoint = endpoint

    def table(self) -> Mapping[str, Operation]:
        return dict((operation(messages.GetDht, self.dht), operation(messages.LookUp, self.find)))

    async def dht(self, _ask: messages.GetDht, _emit: Emit) -> DhtFigures:
        return self._dht.view()

    async def find(self, ask: messages.LookUp, _emit: Emit) -> messages.Searches:
        """Look up a peer, a root or a name.

        For a name, this also finds the providers of each model that the name may mean. If only the
        DHT knows a meaning, the providers are found in a second round of look-ups.
        """
        text = ask.key.lower() if is_digest(ask.key.lower()) else ask.key
        if (peer := self._peer(text)) is not None:
            where = Question(record_key(PeerBody.kind, peer), f"where {peer} is")
            return messages.Searches(tuple(await self._search([where])))
        text = self._blob(text)
        asked, near = _read(text), self._names.near(text)[: defaults.FIND_MODELS]
        searches = await self._search([*_about(text, near), *_others(text, asked, near)])
        told = [one for one in _told(searches, asked) if one.root not in {n.root for n in near}]
        if told := told[: max(0, defaults.FIND_MODELS - len(near))]:
            further = _about(text if len(told) == 1 and not near else "", told)
            searches = [*await self._search(further), *searches]
        return messages.Searches(tuple(searches))

    def _peer(self, text: str) -> PeerId | None:
        """Return the peer whose id is `text` or begins with it; None if `text` is not the beginning
        of a peer id.

        A shortened id must belong to a member or a linked peer. Raises BadId if it matches none or
        several.
        """
        if not text.startswith(COMMON):
            return None
        with suppress(TransportError):
            return parse_peer_id(text)
        known = [*self._directory.members(), *(link.peer for link in self._endpoint.links())]
        return PeerId(meant(text, known, "peer", hint="`shoal peers` shows them"))

    def _blob(self, text: str) -> str:
        """Return the root of this node's blob that begins with `text`. Returns `text` unchanged if
        no blob matches. Raises BadId if several blobs match."""
        roots, hint = self._blobs.roots(), "`shoal blob list` shows them"
        try:
            return meant(text, roots, "blob", hint=hint, least=PREFIX_MIN)
        except BadId as error:
            if error.code == "ambiguous-blob":
                raise
            return text

    async def _search(self, questions: list[Question]) -> list[messages.SearchView]:
        found = await self._dht.find_many(
            [question.key for question in questions],
            most=defaults.FIND_MOST,
            enough=defaults.FIND_ENOUGH,
            timeout=defaults.FIND_TIME,
        )
        return [self._view(question, found[question.key]) for question in questions]

    def _view(self, question: Question, found: FindingResult) -> messages.SearchView:
        return messages.SearchView(
            about=question.about,
            key=key_text(question.key),
            took_ms=(found.ended - found.began) * 1000,
            records=tuple(record_view(each, self._dht.peer) for each in found.records),
            path=tuple(step_view(each, question.key, found.began) for each in found.path),
        )


def _read(text: str) -> NameQuery:
    """Parse `text` as the name or root of a model. Raises ControlError if it cannot be either."""
    try:
        return read(text)
    except ModelError as error:
        raise ControlError(error.code, error.message, hint=messages.KEYS) from None


def _about(text: str, meant: list[NameMeaning]) -> list[Question]:
    """Return two questions for each model: which nodes serve its layers, and which provide its
    chunks.

    `text` is how the user spelled the model. It is used in the questions if there is only one
    model.
    """
    found = []
    for one in meant:
        words = text if len(meant) == 1 and text else spelled(one, meant)
        found += [
            Question(record_key(ShardBody.kind, one.root), f"nodes that serve layers of {words}"),
            Question(record_key(BlobBody.kind, one.root), f"providers of chunks of {words}"),
        ]
    return found


def _others(text: str, asked: NameQuery, near: list[NameMeaning]) -> list[Question]:
    """Return the question about any other meaning of `text`.

    64 hex digits may also be a DHT key. A text that matches the root of a known model gives no
    question. Any other text may be a name that only the DHT knows.
    """
    if is_digest(asked.prefix) and not asked.name:
        return [Question(parse_key(asked.prefix), "records under this key")]
    if near and not near[0].name:
        return []
    name = asked.name or text
    return [Question(record_key(NameBody.kind, name), f"what {name} means")]


def _told(searches: list[messages.SearchView], asked: NameQuery) -> list[NameMeaning]:
    """Return the models that the found name records give for `asked`, those with the most records
    first."""
    said = Counter(
        (str(each.says["name"]), str(each.says["root"]))
        for search in searches
        for each in search.records
        if each.kind == NameBody.kind
    )
    return [
        NameMeaning(name, root)
        for (name, root), _ in sorted(said.items(), key=lambda item: (-item[1], item[0]))
        if asked.name and asked.fits(name, root)
    ]


def record_view(found: FoundRecord, own: str) -> messages.RecordView:
    """Describe a record, and its source: `here` (this node's own storage), `members` (a member's
    record) or `dht`."""
    record = found.record
    source = "dht" if record.sealed else "members"
    if found.by == own:
        source = "here"
    return messages.RecordView(
        kind=record.body.kind,
        author=record.author,
        says=object_of(record.body.fields(), "says"),
        age_s=found.age,
        made=record.made,
        ttl_s=record.ttl,
        by=found.by if source == "dht" else None,
        source=source,
    )


def step_view(step: LookupStep, key: Key, began: float) -> messages.StepView:
    """Describe one request of a look-up. `began` is the time at which the look-up began, in
    seconds."""
    return messages.StepView(
        peer=step.contact.peer,
        shared=_BITS - distance(node_key(step.contact.peer), key).bit_length(),
        hop=step.hop,
        path=step.path,
        at_ms=(step.asked - began) * 1000,
        took_ms=None if step.answered is None else (step.answered - step.asked) * 1000,
        answer=_answer(step, key),
        records=step.handed.get(key, 0),
        contacts=step.contacts,
    )


def _answer(step: LookupStep, key: Key) -> str:
    """Describe the part of a peer's reply that concerns one key."""
    if step.answered is None:
        return "not yet"
    if step.outcome in ("records", "contacts", "nothing"):
        return f"records: {step.handed.get(key, 0)}, new contacts: {step.contacts}"
    return step.outcome
