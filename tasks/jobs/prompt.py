"""Jobs of the kind `prompt`: a model answers a prompt, over any chain of nodes that serves the
model.

Requests come from untrusted peers, so they are bounded and checked before any work. This node's
gateway generates the answer as for `shoal run`, but only while there is no interactive request.
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
from ...state.views.jobs import Job
from ...state.views.view import read_fields
from ...transport.decoding import typed
from ...transport.errors import Undecodable
from ...transport.message import Message as Declared
from ...transport.message import Root, Row, check_text, pack
from ..defaults import MAX_STAGES, STOP_STRING_CHARACTERS, STOP_STRINGS
from ..engine.families import DTYPE_BYTES
from ..engine.interface import Sampled, Sampling
from ..errors import NoRoute, SessionError, TextError
from ..inference.generation import Emit, GatewayEvent, GenerateRequest, Summary, Turn
from ..inference.routing import Members
from ..text.process import ChatTurn, TextDelta
from . import defaults
from .errors import BadSpec
from .results import JobOutcome, failed

KIND = "prompt"
_NAME_BYTES = 128
_ROLE_BYTES = 32
_TEXT_BYTES = 2**16  # the feed entry with the job has a smaller limit
_OWN_FAULTS = ("bad-request", "prompt-too-long")
_ROOT_FIRST = re.compile(
    rb"(?:[\x80-\x8f]|\xde..|\xdf....)\xa4root\xd9\x40([0-9a-f]{64})", re.DOTALL
)
"""Pattern for the beginning of every spec: a msgpack map whose first field is the model's root."""


@dataclass(frozen=True, slots=True)
class PromptSpec:
    """Request of a job, with either `prompt` or `messages`.

    `root` identifies the model; `name` is what the author calls it.
    """

    root: str
    prompt: str | None = None
    messages: tuple[ChatTurn, ...] | None = None
    name: str = ""
    raw: bool = False
    max_tokens: int = defaults.PROMPT_TOKENS
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()

    @property
    def asked(self) -> str:
        """The prompt, or the content of the last message."""
        return (self.prompt if self.messages is None else self.messages[-1].content) or ""

    @property
    def abstract(self) -> str:
        """The beginning of the prompt, for lists of jobs."""
        return self.asked[: defaults.ABSTRACT]


class _Turn(Row, frozen=True):
    """One message of a conversation in a spec."""

    role: str
    content: Annotated[bytes, Meta(max_length=_TEXT_BYTES)]


class _Spec(Declared, frozen=True):
    """Encoding of a request as the spec of a job. The root must come first, because `root_of` reads
    only the beginning."""

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
        """Raise ValueError if the values contradict each other or exceed a limit."""
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
    """Return the root of the model from the first bytes of a spec.

    Decoding a whole malicious spec can take a millisecond, and 1,024 specs are checked without a
    pause. Raises BadSpec if the spec does not begin with a root.
    """
    found = _ROOT_FIRST.match(data)
    if found is None:
        raise BadSpec("invalid prompt: it does not begin with the root of a model")
    return found[1].decode()


def read_spec(data: bytes) -> PromptSpec:
    """Decode the spec of another node's job. Raises BadSpec if it is invalid."""
    root_of(data)  # keys cannot repeat, so the root that is decoded below is the same
    try:
        said = typed(_Spec, read_fields(data))
        return PromptSpec(
            root=said.root,
            prompt=None if said.prompt is None else said.prompt.decode(),
            messages=None
            if said.messages is None
            else tuple(ChatTurn(turn.role, turn.content.decode()) for turn in said.messages),
            name=said.name,
            raw=said.raw,
            max_tokens=min(max(said.tokens, 1), defaults.PROMPT_TOKENS),
            sampling=Sampling(*said.sampling),
            stop=tuple(text.decode() for text in said.stop),
        )
    except (BadFact, Undecodable, UnicodeDecodeError) as error:
        raise BadSpec(f"invalid prompt: {error}") from None


class Generator(Protocol):
    """Interface of a `Gateway`, limited to what prompts need."""

    async def generate(self, request: GenerateRequest, emit: Emit) -> Summary: ...


class Prompts:
    """`Runner` of prompts."""

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
        """Create the runner. `members` returns the members with what they serve now.

        `works_for` returns whether this node itself uses the model with this root. For any other
        model, a job would make this node fetch and process files of an untrusted peer.
        """
        self._gateway = gateway
        self._turn = turn
        self._members = members
        self._now = now
        self._works_for = works_for
        self._served: set[str] = set()
        self._looked = -math.inf  # time at which `_served` was computed
        self._unserved: OrderedDict[str, float] = OrderedDict()  # by root: time since when

    def able(self, job: Job) -> bool:
        """Return whether this node can do the job now.

        Also returns True if no node can do the job, so that this node begins it and ends it with an
        error.
        """
        try:
            root = root_of(job.spec)
        except BadSpec:
            return True
        return self._works_for(root) if self._is_served(root) else self._waited(root)

    async def run(self, job: Job, progress: Callable[[int], None]) -> JobOutcome:
        """Do the job and return its outcome. `progress` receives the number of pieces of text so
        far.

        Raises ShoalError if a later try or another node might succeed.
        """
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
    ) -> JobOutcome:
        """Generate the answer with this node's gateway. Raises ShoalError if that fails."""
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
        return JobOutcome(text=done.text, tokens=done.tokens, reason=done.reason)

    def _is_served(self, root: str) -> bool:
        """Return whether live members serve the whole model.

        The served models are cached for SERVED_FOR seconds, because there may be thousands of jobs.
        """
        if self._now() - self._looked >= defaults.SERVED_FOR:
            self._served, self._looked = served(self._members()), self._now()
        if root in self._served:
            self._unserved.pop(root, None)
        return root in self._served

    def _waited(self, root: str) -> bool:
        """Return whether no node has served the model for MODEL_PATIENCE, so that its jobs must
        fail."""
        since = self._unserved.setdefault(root, self._now())
        self._unserved.move_to_end(root)
        if len(self._unserved) > defaults.MODELS_WAITED_FOR:
            self._unserved.popitem(last=False)
        return self._now() - since >= defaults.MODEL_PATIENCE


def served(members: Members) -> set[str]:
    """Return the roots of all models that these members serve from the first layer to the head.

    Shards form chains as in `routing.py`. Each shard is examined once, even if members state
    different numbers of layers for a model.
    """
    shards: dict[tuple[str, str], list[ShardRecord]] = {}
    for record in members.values():
        for shard in record.shards:
            if shard.kv_tokens_free >= 1 and shard.dtype in DTYPE_BYTES:
                shards.setdefault((shard.root, shard.dtype), []).append(shard)
    return {root for (root, _), some in shards.items() if _reach_a_head(some)}


def _reach_a_head(shards: Sequence[ShardRecord]) -> bool:
    """Return whether some of these shards, of one model and dtype, form a chain that ends with a
    head."""
    lengths = {0: 0}  # number of shards in the shortest chain found, by its end layer
    for shard in sorted(shards, key=lambda each: (each.start, each.stop)):
        before = lengths.get(shard.start)
        if before is None or (shard.start == 0 and not shard.embedding):
            continue
        if shard.head:
            return True
        if before + 1 < MAX_STAGES:
            lengths[shard.stop] = min(before + 1, lengths.get(shard.stop, MAX_STAGES))
    return False
