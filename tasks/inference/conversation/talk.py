"""State of one request at its gateway, and the errors that its client and its chain see. No I/O."""

from collections import Counter
from dataclasses import dataclass, field

from ....transport.identity import PeerId
from ...drafting.speculation import DraftCounts
from ...engine.activations.layout import Activations
from ...errors import SessionError, StageLost
from ...routing.beliefs import Load, Shard
from ...routing.paths import Hop
from ..embedding import PooledAnswer
from ..generation import GenerateRequest, GenerationRun, Model, SessionPurpose
from ..line import RoomRequest
from ..surviving.recovery import Crashes
from .answer import Answer
from .recomputing import KnownAnswer
from .saidtokens import SaidTokens


@dataclass(slots=True)
class Talk:
    """State of one request, with the chain that is open for it."""

    model: Model
    request: GenerateRequest
    ids: list[int]
    new: int  # most tokens that all chains of the request together may generate
    answer: Answer | PooledAnswer | KnownAnswer | SaidTokens
    run: GenerationRun | None = None  # the open chain
    refused: dict[PeerId, SessionError] = field(default_factory=dict)
    lost: set[PeerId] = field(default_factory=set)
    unfit: set[PeerId] = field(default_factory=set)  # that could not stand by
    crashes: Crashes = field(default_factory=Crashes)
    drafts: DraftCounts = field(default_factory=DraftCounts)
    epoch: int = 1  # the highest one of all its sessions
    outrun: int = 0  # times that stages were replaced because the chain crawled
    moves: int = 0  # to faster chains
    moved_from: tuple[Hop, ...] = ()  # the chain before the last move, if it may still return
    left: set[PeerId] = field(default_factory=set)  # stages that it has left for faster ones
    accused: Counter[str] = field(default_factory=Counter)  # reports of lost neighbours, by stage
    activations: Activations | None = None  # of all runs: the text must not depend on their number
    place: RoomRequest = field(init=False)  # in the line of those that wait for room
    replies: dict[Shard, Load] = field(default_factory=dict)  # last replies of stages to its probes

    def __post_init__(self) -> None:
        if self.request.exact:
            self.activations = "exact"
        if self.request.apart is not None:
            self.lost.update(self.request.apart.without)
        self.place = RoomRequest(self.model.root)

    @property
    def must_yield(self) -> bool:
        """Whether the request is for a job, over which an interactive request has priority now."""
        turn = self.request.turn
        return turn is not None and turn.is_over()

    @property
    def terms(self) -> SessionPurpose:
        """The purpose of the request's sessions.

        One that continues an answer is exact, so that the text goes on as it would have. So is any
        if the request says so.
        """
        request = self.request
        pooled = isinstance(self.answer, PooledAnswer)
        exact = request.exact or self.answer.made > 0
        return SessionPurpose(request.job, request.user, pooled, request.top, exact, request.rules)


def lost_stage(
    run: GenerationRun,
    peer: PeerId,
    why: str,
    *,
    by: PeerId | None = None,
    cause: str = "",
) -> StageLost:
    """Create the error for a lost stage. `by` is the stage that reported the loss, or None.

    `cause` is the stage's code if it will return, otherwise "".
    """
    message = f"{run.describe(run.peers.index(peer))} is lost: {why}"
    return StageLost(peer, message, by=by, cause=cause)


def refusal_told(talk: Talk, refusal: SessionError) -> SessionError:
    """Return a stage's refusal as an error for the client, with a hint if the stage lacks
    memory."""
    if refusal.code != "no-memory":
        return refusal
    prompt, new = len(talk.ids), talk.new - talk.answer.made
    hint = (
        f"the prompt has {prompt} tokens and the answer up to {new}: shorten it, set a smaller "
        "`--max-tokens`, or try again when other answers have ended"
    )
    return SessionError(refusal.code, refusal.message, hint=hint)
