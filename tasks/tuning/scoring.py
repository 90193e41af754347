"""Losses of texts over chains of stages: how surprised a model is by a text, with or without an
adapter.

The stages compute the forward half of a training pass, so that texts are read as fast as prompts,
beside the answers that users wait for.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import numpy as np
import trio
from msgspec import structs
from numpy.typing import NDArray

from ..engine.adapters import MODULES, AdapterTerms, module_shapes
from ..engine.families import Architecture
from ..engine.interface import Parts
from ..errors import PromptTooLong, SessionError
from ..inference.generation import Apart, Model
from .chain.parts import names_of, shape_of
from .interface import NOT_COUNTED, AdapterTensors, Batch, TensorName, TuningChain
from .trainer.settings import parts_without_backward

TEXTS_AT_ONCE: Final = 3
"""Texts that are read at once. A stage allows one more tuning, for a fine-tuning."""

UseModel = Callable[[str], AbstractAsyncContextManager[Model]]
ReadAdapter = Callable[[str, Model], Awaitable[tuple[AdapterTerms, NDArray[np.float32]]]]
"""Returns an adapter of a model by name or root: its terms, and the values of its tensors in the
order of its file. Raises SessionError `no-adapter` or `bad-adapter`."""
Encode = Callable[[Model, str], Awaitable[Sequence[int]]]


class NewChain(Protocol):
    """Returns a chain for a model's root, without some peers, that only computes losses."""

    def __call__(
        self, root: str, arch: Architecture, apart: Apart | None, *, job: str, reads: bool
    ) -> TuningChain: ...


class Scorer:
    """Reads texts for one node. `read_adapter` returns an adapter's terms and tensors."""

    def __init__(
        self, use: UseModel, encode: Encode, new_chain: NewChain, read_adapter: ReadAdapter
    ) -> None:
        self._use, self._encode, self._new_chain = use, encode, new_chain
        self._read_adapter = read_adapter
        self._places = trio.CapacityLimiter(TEXTS_AT_ONCE)

    async def loss(
        self,
        name: str,
        given: str,
        text: str,
        *,
        adapter: str = "",
        apart: Apart | None = None,
        job: str = "",
    ) -> tuple[float, int]:
        """Return the loss of `text` behind `given`, a sum in nats, and the number of its tokens.

        The first token of all has no loss, because nothing predicts it. `adapter` is a name or a
        root, or "". The author of `job` pays. Raises PromptTooLong, and SessionError `bad-request`
        if no token is left, and `no-adapter` and `bad-adapter`, besides the errors of a
        TuningChain.
        """
        async with self._use(name) as model:
            if model.arch is None:
                raise SessionError("no-backward", "this node does not know the model's layers")
            ids = await self._encode(model, given + text)
            before = await self._encode(model, given) if given else []
            batch = _batch(ids, max(1, _common(ids, before)))
            if len(ids) - 1 > model.context:
                raise PromptTooLong(len(ids) - 1, model.context)
            async with self._places:
                tensors = await self._tensors(adapter, model)
                chain = self._new_chain(model.root, model.arch, apart, job=job, reads=True)
                try:
                    return await chain.loss(batch, tensors)
                finally:
                    await chain.aclose()

    async def _tensors(self, adapter: str, model: Model) -> AdapterTensors:
        assert model.arch is not None  # the caller has looked
        if not adapter:
            return _nothing(model.root, model.arch)
        terms, values = await self._read_adapter(adapter, model)
        return _parsed(terms, values, model.arch)


def _parsed(terms: AdapterTerms, values: NDArray[np.float32], arch: Architecture) -> AdapterTensors:
    """Return an adapter from the values of its tensors, in the order of its file."""
    found, at = dict[TensorName, NDArray[np.float32]](), 0
    for name in names_of(terms, Parts(True, 0, arch.layers, True)):
        shape = shape_of(name, terms, arch)
        size = shape[0] * shape[1]
        found[name] = values[at : at + size].reshape(shape)
        at += size
    return AdapterTensors(structs.replace(terms, dtype="F32"), found)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of tokens at the beginning of both."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _batch(ids: Sequence[int], first: int) -> Batch:
    """Return a batch in which the tokens from `first` on count."""
    if first >= len(ids):
        raise SessionError("bad-request", "the text has no token that others come before")
    targets = np.array([ids[1:]], np.int32)
    targets[:, : first - 1] = NOT_COUNTED
    return Batch(np.array([ids[:-1]], np.int32), targets)


def _nothing(root: str, arch: Architecture) -> AdapterTensors:
    """Return an adapter that changes nothing, which a training pass needs."""
    shapes = module_shapes(arch)
    module = next((each for each in MODULES if each in shapes), None)
    if module is None or parts_without_backward(arch):
        raise SessionError("no-backward", f"models of the family {arch.family} cannot be scored")
    terms = AdapterTerms(root, 1, 1.0, False, "F32", (module,), (0,))
    outputs, inputs = shapes[module]
    tensors = {
        TensorName(0, module, "A"): np.zeros((1, inputs), np.float32),
        TensorName(0, module, "B"): np.zeros((outputs, 1), np.float32),
    }
    return AdapterTensors(terms, tensors)
