"""Messages about fine-tunings."""

from dataclasses import dataclass
from typing import Annotated, Literal, Never

from ....state.defaults import JOB_PRIORITY, MAX_DEADLINE, MAX_PRIORITY
from ....tasks.engine.adapters import MODULES
from ....tasks.engine.defaults import MAX_RANK
from ....tasks.tuning.trainer.defaults import BATCH_MOST, LENGTHS, STEPS_MOST
from .encoding import Ask, FileName, FixedWord, Items, Number, TextBound, Whole
from .jobs import LackView
from .models import BytesDone, Name

Text = Annotated[str, TextBound(128)]


@dataclass(frozen=True, slots=True)
class BadLineView:
    """A line of the data that is not used, by its number from 1 on, and the reason."""

    line: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataView:
    """What became of the lines of a file of training data.

    `tokens` is the number of tokens of all rows, and `counted` of those that are learned. `split`
    texts became several rows, the end of `cut` ones was left out, and `empty` ones have nothing to
    learn. Of `whole_chats` conversations everything is learned, because the template does not show
    what the assistant says. `bad` lines are broken; `named` has the first of them.
    """

    lines: int
    rows: int
    tokens: int
    counted: int
    split: int
    cut: int
    empty: int
    whole_chats: int
    bad: int
    named: tuple[BadLineView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSettingsView:
    """Settings of a fine-tuning. With `full`, all weights are trained; else rank, alpha and modules
    are those of the adapter. `held_out` is in rows, `look` in steps. `every` is the number of
    steps between two exchanges with others, or None if there are none."""

    rank: int
    alpha: float
    modules: tuple[str, ...]
    rate: float
    warmup: int
    decay: float
    batch: int
    length: int
    steps: int
    seed: int
    held_out: int
    look: int
    every: int | None
    full: bool


@dataclass(frozen=True, slots=True)
class CompanyView:
    """The others with which an adapter is averaged: their number now, the rounds so far, the
    updates that were refused in those that this node saw, and a sentence about the last round, or
    None."""

    peers: int
    round: int
    refused: int
    told: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningView:
    """A fine-tuning of this node.

    `state` is `queued`, `running`, `waiting` (`trouble` says for what), `stopped`, `failed` or
    `done`. `loss` and `held_out` are the latest ones, and `best` the lowest held-out loss, after
    step `best_step`; they are means in nats per token, and None if unknown. `speed` is in tokens
    per second. `saved` is the step of the last checkpoint. `adapter` is the root of the result.
    `folder` has its files, and `out` is where the user wants the result, or None. `together` is the
    name under which it is averaged with those of others, or None. `company` tells about
    them, if it ran since the daemon started. `moves` says whether other nodes may train it, `job`
    is the id of its job then, or None, and `trainer` the peer that trains it now, or None. `full`
    says whether the result is a model instead of an adapter.
    """

    id: str
    model: str
    root: str
    name: str
    state: str
    step: int
    steps: int
    loss: float | None
    held_out: float | None
    best: float | None
    best_step: int
    speed: float | None
    left_s: float | None
    spent_s: float
    saved: int
    trouble: str | None
    error: str | None
    message: str | None
    hint: str | None
    adapter: str | None
    made: float
    source: str
    folder: str
    out: str | None
    together: str | None
    company: CompanyView | None
    moves: bool
    job: str | None
    trainer: str | None
    full: bool


@dataclass(frozen=True, slots=True)
class PointView:
    """A point of a loss curve, after `step` steps. Losses are means in nats per token."""

    step: int
    loss: float
    held_out: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTuning:
    """A fine-tuning with its settings, data and loss curve.

    `lack` is why no other node has the job of one that moves, or None; only the reply to
    `BeginTuning` has it.
    """

    tuning: TuningView
    settings: TuningSettingsView
    data: DataView
    curve: tuple[PointView, ...]
    lack: LackView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTuning(Ask[ShownTuning, BytesDone]):
    """Request to fine-tune a model with the data in the file with this absolute path.

    The reply comes when the data is encoded and stored; the fine-tuning then runs without a client.
    If the client leaves before, nothing is kept. Absent settings have defaults. `out` is an
    absolute path. `moves` says whether other nodes may train it; if it is absent, they may in a
    private swarm. With `seal`, only the members of its group can read what moves, and only this
    node the result. With `full`, all weights of the model are trained, on this node, and the result
    is a model. `priority` and `deadline` (seconds since 1970, or 0) are those of the job of one
    that moves. The reply to such a request waits until another node has the job, for half a minute
    at most.
    """

    op = "tuning_begin"
    model: Name
    path: Annotated[str, FileName()]
    name: Name | None = None
    out: Annotated[str, FileName()] | None = None
    rank: Annotated[int, Whole(1, MAX_RANK)] | None = None
    alpha: Annotated[float, Number(1e-3, 1e5)] | None = None
    modules: (
        Annotated[tuple[Annotated[str, FixedWord(MODULES)], ...], Items(1, len(MODULES))] | None
    ) = None
    rate: Annotated[float, Number(1e-9, 1.0)] | None = None
    warmup: Annotated[int, Whole(0, STEPS_MOST)] | None = None
    decay: Annotated[float, Number(0.0, 1.0)] | None = None
    batch: Annotated[int, Whole(1, BATCH_MOST)] | None = None
    length: Annotated[int, Whole(*LENGTHS)] | None = None
    epochs: Annotated[float, Number(1e-3, 1e4)] | None = None
    steps: Annotated[int, Whole(1, STEPS_MOST)] | None = None
    seed: Annotated[int, Whole(0, 2**63 - 1)] | None = None
    held_out: Annotated[float, Number(0.0, 0.9)] | None = None
    together: Name | None = None
    every: Annotated[int, Whole(1, STEPS_MOST)] | None = None
    moves: bool | None = None
    seal: bool = False
    full: bool = False
    priority: Annotated[int, Whole(0, MAX_PRIORITY)] = JOB_PRIORITY
    deadline: Annotated[int, Whole(0, MAX_DEADLINE)] = 0


@dataclass(frozen=True, slots=True)
class TuningsView:
    """The fine-tunings of this node, the oldest first.

    `fetched` is the number of bytes of checkpoints, of any node's fine-tunings, that this node has
    fetched since its start. `whole` is what all their parts have, with those that were here.
    """

    tunings: tuple[TuningView, ...]
    fetched: int = 0
    whole: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTunings(Ask[TuningsView, Never]):
    """Request for the list of fine-tunings."""

    op = "tunings"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowTuning(Ask[ShownTuning, Never]):
    """Request to describe a fine-tuning, which is named by its id, the beginning of it, or the name
    of its adapter."""

    op = "tuning_show"
    tuning: Text


@dataclass(frozen=True, slots=True)
class TuningProgress:
    """Event that says how far a fine-tuning is."""

    tuning: TuningView
    event: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowTuning(Ask[ShownTuning, TuningProgress]):
    """Request to report the progress of a fine-tuning until it stops, fails or is done."""

    op = "tuning_follow"
    tuning: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTuning(Ask[TuningView, Never]):
    """Request to stop a fine-tuning after a checkpoint."""

    op = "tuning_stop"
    tuning: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveTuning(Ask[TuningView, Never]):
    """Request to have the trainer of a fine-tuning stop after a checkpoint, so that another node
    continues."""

    op = "tuning_move"
    tuning: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeTuning(Ask[TuningView, Never]):
    """Request to continue a fine-tuning that was stopped or has failed."""

    op = "tuning_resume"
    tuning: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTuning(Ask[TuningView, Never]):
    """Request to end a fine-tuning and to delete its files. A finished adapter stays."""

    op = "tuning_rm"
    tuning: Text
