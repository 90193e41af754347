"""Jobs of the kind `prompt`: a model answers a text, over any chain of nodes that serves it.

Requests come from untrusted peers, so they are bounded and checked before any work. This node's own
gateway generates the answer, as for `shoal run`, but only while no interactive request runs.
Spec: docs/spec/jobs.md.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from msgspec import Meta

from ...state.errors import BadFact
from ...state.membership.record import ShardRecord
from ...state.views.fact import read_fields
from ...state.views.jobs import Job
from ...transport.decoding import typed
from ...transport.errors import Undecodable
from ...transport.identity import PeerId
from ...transport.message import Message as Declared
from ...transport.message import Root, Row, check_text, pack
from ..defaults import MAX_STAGES, STOP_STRING_CHARACTERS, STOP_STRINGS
from ..engine.families import DTYPE_BYTES
from ..engine.interface import Sampled, Sampling
from ..errors import NoRoute, SessionError, TextError
from ..inference.generation import Emit, GatewayEvent, GenerateRequest, Summary, Turn
from ..inference.routing import Members
from ..text.process import Message, TextDelta
from . import defaults
from .errors import BadSpec
from .outcome import Outcome, failed

KIND = "prompt"
_NAME_BYTES = 128
_ROLE_BYTES = 32
_TEXT_BYTES = 2**16  # the fact itself has a smaller limit
_OWN_FAULTS = ("bad-request", "prompt-too-long")
_ROOT_FIRST = re.compile(
    rb"(?:[\x80-\x8f]|\xde..|\xdf....)\xa4root\xd9\x40([0-9a-f]{64})", re.DOTALL
)
"""The beginning of every spec: a map whose first field is the model's root."""


@dataclass(frozen=True, slots=True)
class PromptSpec:
    """A request with `prompt` or `messages`. `root` selects the model; `name` is what the author
    calls it."""

    root: str
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    name: str = ""
    raw: bool = False
    max_tokens: int = defaults.PROMPT_TOKENS
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()

    @property
    def asked(self) -> str:
        """The prompt, or the last message."""
        return (self.prompt if self.messages is None else self.messages[-1].content) or ""

    @property
    def abstract(self) -> str:
        """The beginning of the prompt."""
        return self.asked[: defaults.ABSTRACT]


class _Turn(Row, frozen=True):
    role: str
    content: Annotated[bytes, Meta(max_length=_TEXT_BYTES)]


class _Spec(Declared, frozen=True):
    """A request on the wire. `root_of` needs the root first."""

    root: Root
    tokens: int = defaults.PROMPT_TOKENS
    messages: (
        Annotated[tuple[_Turn, ...], Meta(min_length=1, max_length=defaults.PROMPT_MESSAGES)] | None
    ) = None
    prompt: Annotated[bytes, Meta(min_length=1, max_length=_TEXT_BYTES)] | None = None
    name: str = ""
    raw: bool = False
    stop: Annotated[tuple[bytes, ...], Meta(max_length=STOP_STRINGS)] = ()
    sampling: Sampled = Sampling()

    def check(self) -> None:
        check_text(self.name, _NAME_BYTES)
        for turn in self.messages or ():
            check_text(turn.role, _ROLE_BYTES)
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("expected either a prompt or messages")
        if not all(0 < len(text.decode()) <= STOP_STRING_CHARACTERS for text in self.stop):
            raise ValueError(f"expected stop strings of 1 to {STOP_STRING_CHARACTERS} characters")


def pack_spec(spec: PromptSpec) -> bytes:
    """Encode a request as the spec of a job."""
    return pack(
        _Spec(
            root=spec.root,
            tokens=spec.max_tokens,
            messages=None
            if spec.messages is None
            else tuple(_Turn(said.role, said.content.encode()) for said in spec.messages),
            prompt=None if spec.messages is not None else (spec.prompt or "").encode(),
            name=spec.name,
            raw=spec.raw,
            stop=tuple(text.encode() for text in spec.stop),
            sampling=spec.sampling,
        )
    )


def root_of(data: bytes) -> str:
    """Return the root of the model that a spec is for, from its first bytes. A full read can take a
    millisecond if the spec is malicious, and 1,024 specs are checked in one go. Raises BadSpec."""
    found = _ROOT_FIRST.match(data)
    if found is None:
        raise BadSpec("invalid prompt: it does not begin with the root of a model")
    return found[1].decode()


def read_spec(data: bytes) -> PromptSpec:
    """Decode the spec of another node's job. Raises BadSpec."""
    root_of(data)  # keys cannot repeat, so the first root is the one that is read below
    try:
        said = typed(_Spec, read_fields(data))
        return PromptSpec(
            root=said.root,
            prompt=None if said.prompt is None else said.prompt.decode(),
            messages=None
            if said.messages is None
            else tuple(Message(turn.role, turn.content.decode()) for turn in said.messages),
            name=said.name,
            raw=said.raw,
            max_tokens=min(max(said.tokens, 1), defaults.PROMPT_TOKENS),
            sampling=Sampling(*said.sampling),
            stop=tuple(text.decode() for text in said.stop),
        )
    except (BadFact, Undecodable, UnicodeDecodeError) as error:
        raise BadSpec(f"invalid prompt: {error}") from None


class Generator(Protocol):
    """Interface of a `Gateway`, as far as prompts need it."""

    async def generate(self, request: GenerateRequest, emit: Emit) -> Summary: ...


class Prompts:
    """`Runner` of prompts. `members` returns the members and what they serve now."""

    kind = KIND

    def __init__(
        self,
        gateway: Generator,
        turn: Turn,
        members: Callable[[], Members],
        now: Callable[[], float],
        *,
        works_for: Callable[[str], bool],
    ) -> None:
        """`works_for`: whether this node has the model (by root) for a reason of its own. For any
        other model, a job would make it fetch and read a stranger's files."""
        self._gateway = gateway
        self._turn = turn
        self._members = members
        self._now = now
        self._works_for = works_for
        self._served: set[str] = set()
        self._looked = -math.inf  # when the list of served models was read
        self._unserved: OrderedDict[str, float] = OrderedDict()  # since when, by root

    def able(self, job: Job) -> bool:
        """Whether the job can be done here now. A job that no node can do is accepted, to fail with
        a reason."""
        try:
            root = root_of(job.spec)
        except BadSpec:
            return True
        return self._works_for(root) if self._is_served(root) else self._waited(root)

    async def run(self, job: Job, progress: Callable[[int], None]) -> Outcome:
        """Do the job. `progress` receives the number of tokens so far. Raises ShoalError if a later
        try or another node might succeed."""
        try:
            spec = read_spec(job.spec)
        except BadSpec as error:
            return failed(error.code, error.message)
        if not self._is_served(spec.root) and self._waited(spec.root):
            minutes = defaults.MODEL_PATIENCE / 60
            return failed("no-route", f"no node has served this model for {minutes:g} minutes")
        if not self._works_for(spec.root):
            raise NoRoute("this node does jobs for its own models")
        try:
            return await self._answered(job.id, spec, progress)
        except SessionError as error:
            if error.code not in _OWN_FAULTS:
                raise
            return failed(error.code, error.message)
        except TextError as error:
            return failed(error.code, error.message)

    async def _answered(
        self, job: str, spec: PromptSpec, progress: Callable[[int], None]
    ) -> Outcome:
        pieces = 0

        async def emit(event: GatewayEvent) -> None:
            nonlocal pieces
            if isinstance(event, TextDelta):
                pieces += 1
                progress(pieces)

        request = GenerateRequest(
            model=spec.root,
            prompt=spec.prompt,
            messages=spec.messages,
            raw=spec.raw,
            max_tokens=spec.max_tokens,
            sampling=spec.sampling,
            stop=spec.stop,
            job=job,
            turn=self._turn,
        )
        done = await self._gateway.generate(request, emit)
        return Outcome(text=done.text, tokens=done.tokens, reason=done.reason)

    def _is_served(self, root: str) -> bool:
        """Whether live members serve the whole model. Cached, as thousands of jobs may ask."""
        if self._now() - self._looked >= defaults.SERVED_FOR:
            self._served, self._looked = served(self._members()), self._now()
        if root in self._served:
            self._unserved.pop(root, None)
        return root in self._served

    def _waited(self, root: str) -> bool:
        """Whether no node has served a model for so long that its jobs should fail."""
        since = self._unserved.setdefault(root, self._now())
        self._unserved.move_to_end(root)
        if len(self._unserved) > defaults.MODELS_WAITED_FOR:
            self._unserved.popitem(last=False)
        return self._now() - since >= defaults.MODEL_PATIENCE


def served(members: Members) -> set[str]:
    """Return the roots of all models that these members serve from the first layer to a head.

    Shards join as in `routing.py`. Each shard is examined once, however many different lengths of
    the model are claimed.
    """
    shards: dict[tuple[str, str], list[tuple[PeerId, ShardRecord]]] = {}
    for peer, record in members.items():
        for shard in record.shards:
            if shard.kv_tokens_free >= 1 and shard.dtype in DTYPE_BYTES:
                shards.setdefault((shard.root, shard.dtype), []).append((peer, shard))
    return {root for (root, _), some in shards.items() if _reach_a_head(some)}


def _reach_a_head(shards: Sequence[tuple[PeerId, ShardRecord]]) -> bool:
    """Whether some of these shards, of one model and dtype, form a chain up to a head."""
    chains: dict[int, tuple[PeerId, ...]] = {0: ()}  # the shortest one found, by its end layer
    for peer, shard in sorted(shards, key=lambda each: (each[1].start, each[1].stop)):
        chain = chains.get(shard.start)
        if chain is None or peer in chain or (shard.start == 0 and not shard.embedding):
            continue
        if shard.head:
            return True
        longer, known = (*chain, peer), chains.get(shard.stop)
        if len(longer) < MAX_STAGES and (known is None or len(longer) < len(known)):
            chains[shard.stop] = longer
    return False
