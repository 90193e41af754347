"""Settings of one fine-tuning: what a user asked for, and what follows from model and data."""

import math
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from ....transport import naming
from ....transport.message import Message, Root
from ...engine.adapters import MODULES, AdapterTerms, Module, module_shapes
from ...engine.defaults import MAX_RANK
from ...engine.families import Architecture
from ..interface import LearnedName, TensorName
from . import defaults
from .errors import TuningError


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Wishes of a user. None means that a default applies, which may depend on the model and
    the data."""

    rank: int | None = None
    alpha: float | None = None
    modules: tuple[str, ...] | None = None
    rate: float | None = None  # peak of the learning rate
    warmup: int | None = None  # steps
    decay: float | None = None  # of the weights, per step and unit of the rate
    batch: int | None = None  # rows of one step
    length: int | None = None  # tokens of a row
    epochs: float | None = None
    steps: int | None = None
    seed: int | None = None
    held_out: float | None = None  # share of the rows
    together: str | None = None  # name under which others average with this fine-tuning
    every: int | None = None  # steps between two exchanges with them
    full: bool = False  # whether all weights are trained, instead of an adapter


class TuningSettings(Message, frozen=True):
    """Settings on which the result depends. With the data, they decide every bit of it.

    With `full`, all weights of the model are trained. Rank, alpha and modules are those of an
    adapter, and zero or empty then.
    """

    root: Root  # of the model
    rank: Annotated[int, Meta(ge=0, le=MAX_RANK)]
    alpha: Annotated[float, Meta(ge=0, lt=1e6)]
    modules: Annotated[tuple[Module, ...], Meta(max_length=len(MODULES))]
    layers: Annotated[int, Meta(ge=1)]  # of the model; all of them are tuned
    rate: Annotated[float, Meta(gt=0, le=1)]
    warmup: Annotated[int, Meta(ge=0)]
    decay: Annotated[float, Meta(ge=0, le=1)]
    batch: Annotated[int, Meta(ge=1, le=defaults.BATCH_MOST)]
    length: Annotated[int, Meta(ge=defaults.LENGTHS[0], le=defaults.LENGTHS[1])]
    steps: Annotated[int, Meta(ge=1, le=defaults.STEPS_MOST)]
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    held_out: Annotated[int, Meta(ge=0)]  # rows
    look: Annotated[int, Meta(ge=1)]  # steps between two measurements of the held-out loss
    together: Annotated[str, Meta(max_length=naming.MOST)] = ""
    """Name under which the adapter is averaged with those of others, or ""."""
    every: Annotated[int, Meta(ge=1, le=defaults.STEPS_MOST)] = defaults.EVERY
    """Steps between two exchanges with them."""
    full: bool = False

    def check(self) -> None:
        """Raise ValueError if the values contradict each other."""
        of_adapter = (self.rank > 0, self.alpha > 0, bool(self.modules))
        if of_adapter != (not self.full,) * 3:
            raise ValueError("expected rank, alpha and modules of an adapter, or none with `full`")

    @property
    def terms(self) -> AdapterTerms:
        """Terms of the adapter."""
        layers = tuple(range(self.layers))
        return AdapterTerms(self.root, self.rank, self.alpha, False, "F32", self.modules, layers)

    def trains(self, name: LearnedName) -> bool:
        """Return whether a tensor is trained. Nodes that average share one frozen A, so that the
        mean of each B is exact."""
        return not (self.together and isinstance(name, TensorName) and name.side == "A")

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0: a linear rise, then half a cosine."""
        if step < self.warmup:
            return self.rate * (step + 1) / (self.warmup + 1)
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        low = defaults.RATE_END
        return self.rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def parts_without_backward(arch: Architecture) -> list[str]:
    """Return the parts of a model whose derivatives no engine computes."""
    parts = {
        "experts": any(kind.experts for kind in arch.kinds),
        "recurrent layers": arch.recurrent,
        "attention sinks": arch.sinks,
        "gated attention": arch.gated_attention,
    }
    return [name for name, has in parts.items() if has]


def no_backward(arch: Architecture) -> TuningError:
    """Return the error of a model that has parts without derivatives."""
    return TuningError(
        "no-backward",
        f"models of the family {arch.family} cannot be trained: they have "
        f"{parts_without_backward(arch)[0]}",
        hint="`docs/families.md` lists what each family supports",
    )


def check_wishes(wishes: Wishes, arch: Architecture, context: int) -> None:
    """Raise TuningError if a model cannot be tuned like this. Needs no data. `context` is in
    tokens."""
    if wishes.full:
        _check_full(wishes)
    shapes = module_shapes(arch)
    if not shapes and not wishes.full:
        raise TuningError(
            "unsupported-model",
            f"models of the family {arch.family} have no modules that an adapter could change",
            hint="`docs/families.md` lists what each family supports",
        )
    if not wishes.full and parts_without_backward(arch):
        raise no_backward(arch)
    for name in wishes.modules or ():
        if name not in shapes:
            raise TuningError(
                "bad-modules",
                f"the model has no module {ascii(name)[:40]}",
                hint=f"it has {', '.join(shapes)}",
            )
    if wishes.length is not None and wishes.length > context:
        raise TuningError(
            "bad-length",
            f"rows of {wishes.length} tokens are longer than the model's context of {context}",
            hint=f"at most `--length {context}`",
        )


def _check_full(wishes: Wishes) -> None:
    """Raise TuningError if a wish is about an adapter, which full training has not."""
    given = {"rank": wishes.rank, "alpha": wishes.alpha, "modules": wishes.modules}
    for name in (name for name, value in given.items() if value is not None):
        raise TuningError(
            "bad-options",
            f"`--{name}` is about an adapter, and `--full` trains all weights instead of one",
            hint=f"leave out `--{name}` or `--full`",
        )


def row_length(wishes: Wishes, context: int) -> int:
    """Return the tokens of the longest row."""
    return wishes.length or min(defaults.LENGTH, context, defaults.LENGTHS[1])


def settle(
    wishes: Wishes, root: str, arch: Architecture, length: int, rows: int, seed: int
) -> TuningSettings:
    """Return the settings for a data set of `rows` rows. `seed` applies if none is wished."""
    full = wishes.full
    rank = 0 if full else wishes.rank or defaults.RANK
    batch = wishes.batch or defaults.BATCH
    held = held_out_rows(wishes.held_out, rows)
    steps = _steps(wishes, -(-(rows - held) // batch))
    warmup = wishes.warmup
    return TuningSettings(
        root=root,
        rank=rank,
        alpha=float(2 * rank) if wishes.alpha is None else wishes.alpha,
        modules=() if full else _modules(wishes, arch),
        layers=arch.layers,
        rate=default_rate(arch.hidden, full=full) if wishes.rate is None else wishes.rate,
        warmup=int(steps * defaults.WARMUP) if warmup is None else warmup,
        decay=defaults.DECAY if wishes.decay is None else wishes.decay,
        batch=batch,
        length=length,
        steps=steps,
        seed=seed if wishes.seed is None else wishes.seed,
        held_out=held,
        look=_look(steps, batch, held),
        together=wishes.together or "",
        every=wishes.every or (defaults.EVERY_WHOLE if full else defaults.EVERY),
        full=full,
    )


def default_rate(hidden: int, *, full: bool = False) -> float:
    """Return the default peak of the learning rate, rounded to two digits. `hidden` is the
    number of hidden values of a position."""
    rate = (defaults.RATE_WHOLE if full else defaults.RATE) / hidden
    return float(f"{min(defaults.RATE_MOST, rate):.1e}")


def held_out_rows(share: float | None, rows: int) -> int:
    """Return how many rows are held out. At least one row is left to learn from."""
    if rows < 2 or (share is None and rows < defaults.HELD_OUT_LEAST):
        return 0
    wished = defaults.HELD_OUT if share is None else share
    least = 1 if wished else 0
    return min(max(round(wished * rows), least), defaults.HELD_OUT_ROWS, rows - 1)


def _steps(wishes: Wishes, each: int) -> int:
    """Return the number of steps. `each` is that of one pass over the data."""
    if wishes.steps is not None:
        return wishes.steps
    if wishes.epochs is not None:
        return min(max(1, round(wishes.epochs * each)), defaults.STEPS_MOST)
    wished = max(defaults.EPOCHS * each, defaults.STEPS_LEAST)
    return min(max(1, round(min(wished, defaults.EPOCHS_MOST * each))), defaults.STEPS_MOST)


def _look(steps: int, batch: int, held_out: int) -> int:
    """Return the steps between two looks at the held-out rows, which take LOOK_SHARE of the time at
    most: a step computes each of its rows some four times, a look once."""
    return max(1, steps // defaults.LOOKS, round(held_out / (4 * batch * defaults.LOOK_SHARE)))


def _modules(wishes: Wishes, arch: Architecture) -> tuple[Module, ...]:
    every = module_shapes(arch)
    wished = every if wishes.modules is None else wishes.modules
    return tuple(module for module in every if module in wished)
