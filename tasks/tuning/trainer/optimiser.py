"""State of a fine-tuning, the initial tensors of an adapter, and AdamW (Loshchilov, Hutter 2019)
in float32. No I/O.

The results depend only on the inputs, bit for bit on one machine.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...engine.adapters import MODULES, Module
from ...engine.layouts import Shape
from ..interface import Gradients, LearnedName, TensorName
from . import defaults
from .errors import BadGradients
from .order import noise
from .settings import TuningSettings

Array = NDArray[np.float32]
Shapes = Mapping[Module, tuple[int, int]]
"""(outputs, inputs) of each module."""
_A_STREAM: Final = 1 << 32  # streams of the seed from here on are for tensors


@dataclass(slots=True)
class Learned:
    """Tensors that are trained, and state of their optimiser after `step` steps.

    `norms` are those of the latest gradients, before they were clipped. Tensors without moments are
    frozen.
    """

    step: int
    tensors: dict[LearnedName, Array]
    first: dict[LearnedName, Array]  # moments
    second: dict[LearnedName, Array]
    loss: float = 0.0  # of the last step, as a mean
    norms: list[float] = field(default_factory=list)
    best: dict[LearnedName, Array] = field(default_factory=dict)
    """The tensors with the lowest held-out loss, or empty."""
    best_loss: float = math.inf
    best_step: int = 0
    round: "Round | None" = None
    """The current round, if the adapter is averaged with those of others."""


@dataclass(frozen=True, slots=True)
class Round:
    """A round of an averaged fine-tuning: the encoded state from which it began (a `Base` of the
    averager), the step after which it began, and the tokens of the steps since."""

    base: bytes = field(repr=False)
    began: int
    tokens: int = 0


def tensor_shapes(settings: TuningSettings, shapes: Shapes) -> dict[LearnedName, Shape]:
    """Return the shape of each tensor of an adapter, in the order in which adapters store them."""
    found: dict[LearnedName, Shape] = {}
    for layer in range(settings.layers):
        for module in (each for each in MODULES if each in settings.modules):
            outputs, inputs = shapes[module]
            found[TensorName(layer, module, "A")] = (settings.rank, inputs)
            found[TensorName(layer, module, "B")] = (outputs, settings.rank)
    return found


def adapter_tensors(settings: TuningSettings, shapes: Shapes) -> dict[LearnedName, Array]:
    """Return an adapter before the first step: A uniform as in `peft`, and B zero."""
    found: dict[LearnedName, Array] = {}
    for number, (name, shape) in enumerate(tensor_shapes(settings, shapes).items()):
        is_a = isinstance(name, TensorName) and name.side == "A"
        found[name] = _uniform(settings.seed, number, shape) if is_a else _zeros(shape)
    return found


def begin(settings: TuningSettings, shapes: Shapes) -> Learned:
    """Return the state of an adapter before the first step."""
    return begin_from(settings, adapter_tensors(settings, shapes))


def begin_from(settings: TuningSettings, tensors: dict[LearnedName, Array]) -> Learned:
    """Return the state before the first step with these tensors. The moments are zero.

    Tensors that are not trained have none.
    """
    trained = {name: each.shape for name, each in tensors.items() if settings.trains(name)}
    first, second = ({name: _zeros(shape) for name, shape in trained.items()} for _ in range(2))
    return Learned(0, tensors, first, second)


def _zeros(shape: Shape) -> Array:
    return np.zeros(shape, np.float32)


def _uniform(seed: int, number: int, shape: Shape) -> Array:
    """Return values between -1 / sqrt(inputs) and 1 / sqrt(inputs)."""
    bits = noise(seed, _A_STREAM + number, shape[0] * shape[1]) >> np.uint64(40)
    unit = bits.astype(np.float32) * np.float32(2**-23) - np.float32(1)
    scaled: Array = (unit * np.float32(1 / math.sqrt(shape[1]))).reshape(shape)
    return scaled


def check(found: Gradients, learned: Learned, counted: int) -> float:
    """Return the norm of a mean gradient. Raises BadGradients if it must not be applied.

    `counted` is the number of positions that the batch counts.
    """
    if found.counted != counted:
        raise BadGradients(f"they are of {found.counted} positions, expected {counted}")
    if not (math.isfinite(found.loss) and found.loss >= 0):
        raise BadGradients(f"the loss is {found.loss}")
    if found.tensors.keys() != learned.first.keys():
        raise BadGradients("they are of other tensors than those that are trained")
    total = 0.0
    for name in learned.first:  # the order of a chain's tensors is another one in each process
        each = found.tensors[name]
        wanted = learned.tensors[name].shape
        if each.shape != wanted or each.dtype != np.float32:
            raise BadGradients(f"{_words(name)} has the shape {list(each.shape)}, "
                               f"expected {list(wanted)} of float32")  # fmt: skip
        total += float(np.square(each, dtype=np.float64).sum())
    norm = math.sqrt(total) / counted
    if not math.isfinite(norm):
        raise BadGradients("they have values that are not finite")
    # A norm that is not clipped does no harm, and those of data that are known by heart are near 0.
    most = max(defaults.NORM_FACTOR * median(learned.norms or [math.inf]), defaults.CLIP)
    if norm > most:
        raise BadGradients(f"their norm is {norm:.3g}, at most {most:.3g} is plausible")
    return norm


def _words(name: LearnedName) -> str:
    if not isinstance(name, TensorName):
        return f"`{name.role}`"
    return f"{name.side} of `{name.module}` in layer {name.layer}"


def apply(learned: Learned, found: Gradients, norm: float, settings: TuningSettings) -> None:
    """Do one step of AdamW in place, with gradients that `check` has accepted. It returned `norm`,
    the norm of their mean.

    The order of operations is that of torch.optim.AdamW.
    """
    rate, (beta1, beta2) = settings.rate_at(learned.step), defaults.BETAS
    learned.step += 1
    keep = np.float32(1 - rate * settings.decay)
    scale = np.float32(min(1.0, defaults.CLIP / (norm + 1e-6)) / found.counted)
    size = np.float32(rate / (1 - beta1**learned.step))
    root = np.float32(math.sqrt(1 - beta2**learned.step))
    for name, first in learned.first.items():
        tensor, second = learned.tensors[name], learned.second[name]
        gradient = found.tensors[name] * scale
        first += np.float32(1 - beta1) * (gradient - first)
        second *= np.float32(beta2)
        second += np.float32(1 - beta2) * gradient * gradient
        if settings.decay:
            tensor *= keep
        tensor -= size * (first / (np.sqrt(second) / root + np.float32(defaults.EPSILON)))
    learned.loss = found.loss / found.counted
    if (own := learned.round) is not None:
        learned.round = replace(own, tokens=own.tokens + found.counted)
    learned.norms = [*learned.norms, norm][-defaults.NORMS :]
