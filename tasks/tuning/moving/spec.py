"""Spec of a fine-tuning as a job. It comes from an untrusted peer: bounded, typed, then checked
against the model."""

from typing import Annotated

from msgspec import Meta

from ....state import defaults as state_defaults
from ....state.errors import BadFact
from ....state.views.view import read_fields
from ....transport.decoding import typed
from ....transport.errors import Undecodable
from ....transport.message import Message, Root, Row, check_text, pack
from ...engine.adapters import module_shapes
from ...engine.families import Architecture
from ...jobs import defaults as job_defaults
from ...jobs.errors import BadSpec
from ...jobs.spec import BlobPart, root_of
from ..trainer.errors import TuningError
from ..trainer.optimiser import Shapes, tensor_shapes
from ..trainer.settings import TuningSettings
from . import defaults

_NAME_BYTES = 128


class SizedBlob(Row, frozen=True):
    """A blob, with its bytes."""

    root: Root
    size: Annotated[int, Meta(ge=1, le=defaults.STATE_BYTES)]

    @property
    def whole(self) -> BlobPart:
        """All bytes of the blob."""
        return BlobPart(self.root, self.size, 0, self.size)


class TuningSpec(Message, frozen=True):
    """A fine-tuning that any node can do. The root of the model comes first, as in all specs.

    `rows` is the blob with the encoded rows, and `data` their digest. `start` is the checkpoint
    from which it begins, if it does not begin at step 0.
    """

    root: Root
    settings: TuningSettings
    rows: SizedBlob
    data: Root
    name: str = ""  # by which the author calls the model
    start: SizedBlob | None = None

    def check(self) -> None:
        """Raise ValueError if the values contradict each other or exceed a limit."""
        check_text(self.name, _NAME_BYTES)
        if self.settings.root != self.root:
            raise ValueError("the settings are for another model")
        if self.settings.together:
            raise ValueError("a fine-tuning that is averaged with others does not move")
        if self.rows.size > job_defaults.INPUT_BYTES:
            raise ValueError(f"the rows of a job have at most {job_defaults.INPUT_BYTES} bytes")


def pack_tuning(spec: TuningSpec) -> bytes:
    """Encode a spec. Raises BadSpec if it has too many bytes for a feed."""
    packed = pack(spec)
    if len(packed) > state_defaults.JOB_SPEC_BYTES:
        raise BadSpec(f"the spec of a job has at most {state_defaults.JOB_SPEC_BYTES} bytes")
    return packed


def read_tuning(data: bytes) -> TuningSpec:
    """Decode the spec of another node's fine-tuning. Raises BadSpec if it is invalid."""
    root_of(data)
    try:
        return typed(TuningSpec, read_fields(data))
    except (BadFact, Undecodable) as error:
        raise BadSpec(f"invalid fine-tuning: {error}") from None


def checked_shapes(settings: TuningSettings, arch: Architecture) -> Shapes:
    """Return the shapes of the model's modules.

    Raises TuningError `bad-spec` if the settings do not fit the model, and `too-large` if the
    trainer would need more memory than one for another node gets.
    """
    shapes = module_shapes(arch)
    if settings.layers != arch.layers or not set(settings.modules) <= set(shapes):
        raise TuningError("bad-spec", "the settings of the fine-tuning do not fit the model")
    if settings.length > arch.context:
        raise TuningError("bad-spec", "the rows are longer than the model's context")
    size = state_bytes(settings, shapes)
    if size > defaults.STATE_BYTES or settings.batch * settings.length > defaults.POSITIONS:
        raise TuningError(
            "too-large",
            f"a checkpoint of {size >> 20} MiB, or a batch of {settings.batch} rows of "
            f"{settings.length} tokens, is too large for another node",
            hint="a smaller `--rank`, `--batch` or `--length`; or `--stay`",
        )
    return shapes


def state_bytes(settings: TuningSettings, shapes: Shapes) -> int:
    """Return the bytes of all tensors of a checkpoint."""
    every = tensor_shapes(settings, shapes).values()
    return 4 * 4 * sum(rows * columns for rows, columns in every)
