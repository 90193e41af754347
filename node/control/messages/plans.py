"""Messages about predicted placements."""

from dataclasses import dataclass
from typing import Annotated, Never

from .encoding import Ask, TextBound, Whole
from .models import Name


@dataclass(frozen=True, slots=True)
class PlannedNodeView:
    """A machine in a placement: its layers as `start:stop`, the bytes that they need, how many of
    the sessions run through it, and the milliseconds of its step for one of them."""

    node: str
    layers: str
    bytes: int
    sessions: int
    step_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeView:
    """Predicted rates of a placement.

    `tokens_per_s` is for all sessions together, `single_per_s` for one session alone, and
    `first_token_s` the time until its first token. `stages` is the length of its chain; 0 means
    that the machines cannot serve the model.
    """

    tokens_per_s: float
    single_per_s: float
    first_token_s: float
    stages: int
    sessions: int
    nodes: tuple[PlannedNodeView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionView(OutcomeView):
    """The best placement of the same model in another precision, and by how much its loss would
    rise at most, as a share."""

    precision: str
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """The best placement of a model that was found, the present one, and the best one with one
    machine more (`added`) or less (`removed`). None: there is none, or it was not asked for.

    `smaller` has the best placements in the precisions to which the model could be quantised.
    """

    model: str
    layers: int
    dtype: str
    machines: int
    sessions: int
    prompt: int
    answer: int
    best: OutcomeView
    present: OutcomeView | None
    added: OutcomeView | None
    removed: OutcomeView | None
    smaller: tuple[PrecisionView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePlan(Ask[PlanView, Never]):
    """Request for a placement of a model on the members of the swarm. Nothing moves.

    `add` describes a machine that may come, `remove` is the id (or its beginning) of one that may
    leave.
    """

    op = "plan"
    name: Name
    add: Annotated[str, TextBound(512)] | None = None
    remove: Annotated[str, TextBound(64)] | None = None
    sessions: Annotated[int, Whole(1, 64)] | None = None
    prompt: Annotated[int, Whole(1, 10**7)] | None = None
    answer: Annotated[int, Whole(1, 10**7)] | None = None
