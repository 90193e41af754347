"""Plan of a fine-tuning, which a node stores beside data and checkpoint (docs/spec/trainer.md).

A fine-tuning has a folder, whose name is its id. `plan.json` in it says what is computed, and
whether it is to be continued.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta
from msgspec.structs import replace

from ....state.defaults import JOB_PRIORITY, MAX_PRIORITY
from ....transport.decoding import typed
from ....transport.errors import Undecodable
from ....transport.host.seam import Files
from ....transport.message import Message, Root
from . import defaults
from .dataset import BadLine, DataReport
from .errors import Damaged
from .optimiser import Shapes
from .settings import TuningSettings

State = Literal["running", "stopped", "failed", "done"]
"""`running` says that the fine-tuning is to be continued whenever its node runs."""
_Text = Annotated[str, Meta(max_length=4096)]
_Count = Annotated[int, Meta(ge=0)]


class Counts(Message, frozen=True):
    """What became of the lines of the data. The fields are those of `DataReport`."""

    lines: _Count
    rows: _Count
    tokens: _Count
    counted: _Count
    split: _Count
    cut: _Count
    empty: _Count
    whole_chats: _Count
    bad: _Count
    named: Annotated[
        tuple[tuple[_Count, _Text], ...], Meta(max_length=defaults.BAD_LINES_NAMED)
    ] = ()

    @classmethod
    def of(cls, report: DataReport) -> "Counts":
        """Return the counts of a report."""
        named = tuple((bad.line, bad.why[:200]) for bad in report.named)
        return cls(
            report.lines, report.rows, report.tokens, report.counted, report.split, report.cut,
            report.empty, report.whole_chats, report.bad, named,
        )  # fmt: skip

    @property
    def bad_lines(self) -> tuple[BadLine, ...]:
        """The first broken lines."""
        return tuple(BadLine(line, why) for line, why in self.named)


class TuningPlan(Message, frozen=True):
    """One fine-tuning. `model` is the name by which the user called the model, `source` the path of
    the data, `out` that of a folder that the user wants the adapter in, or ""."""

    model: _Text
    source: _Text
    name: _Text  # of the resulting adapter
    out: _Text
    settings: TuningSettings
    data: Root  # digest of the rows
    counts: Counts
    made: float  # seconds since 1970
    state: State
    error: _Text = ""  # code, if it failed
    message: _Text = ""
    hint: _Text = ""
    adapter: _Text = ""  # root of the result, once it is published
    seconds: float = 0.0  # of computing in all runs
    reached: _Count = 0  # step at which the last run ended, with its losses:
    loss: float | None = None
    held_out: float | None = None
    best: float | None = None
    best_step: _Count = 0
    moves: bool = False  # whether other nodes may train it
    sealed: bool = False  # whether only members of the group can read what moves
    job: _Text = ""  # that does so now, or ""
    priority: Annotated[int, Meta(ge=0, le=MAX_PRIORITY)] = JOB_PRIORITY  # of that job
    deadline: _Count = 0  # … in seconds since 1970; 0: none

    def check(self) -> None:
        """Raise ValueError if the settings contradict each other."""
        self.settings.check()

    def put(self, **changes: object) -> "TuningPlan":
        """Return the plan with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Errand:
    """What another node needs to train a fine-tuning. `run` is the digest of all that the result
    depends on, `rows` the file with the encoded rows, `data` its digest, and `model` what the user
    calls the model."""

    settings: TuningSettings
    shapes: Shapes
    run: str
    rows: Path
    data: str
    model: str
    sealed: bool = False
    """Whether only members of the group can read its rows and checkpoints."""
    priority: int = JOB_PRIORITY
    deadline: int = 0


PLAN: Final = "plan.json"


@dataclass(frozen=True, slots=True)
class PlanFile:
    """The file of a plan in the folder of its fine-tuning. Its methods block."""

    files: Files
    folder: Path

    def read(self) -> TuningPlan | None:
        """Return the plan, or None if the folder has none: its fine-tuning was never accepted.

        Raises Damaged if it is malformed.
        """
        path = self.folder / PLAN
        try:
            value = json.loads(self.files.read(path, limit=defaults.PLAN_BYTES))
            return typed(TuningPlan, value)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError, Undecodable) as error:
            raise Damaged(path, str(error)[:200]) from None

    def write(self, plan: TuningPlan) -> None:
        """Store a plan, which is durable on return. Raises OSError if the disk fails."""
        self.files.write(self.folder / PLAN, json.dumps(_plain(plan), indent=1).encode() + b"\n")


def _plain(value: object) -> object:
    """Return a message as values of JSON."""
    if isinstance(value, Message):
        return {name: _plain(each) for name, each in value.fields().items()}
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
