"""Spec of a fine-tuning as a job. It comes from an untrusted peer: bounded, typed, then checked
against the model."""

import math
from typing import Annotated, Final

from msgspec import Meta
from msgspec.structs import replace

from ....state import defaults as state_defaults
from ....state.errors import BadFact
from ....state.views.fields import read_fields
from ....state.views.jobs import Job
from ....transport.decoding import decode, typed
from ....transport.errors import Undecodable
from ....transport.message import Message, Root, Row, check_text, pack
from ...engine.adapters import module_shapes
from ...engine.families import Architecture
from ...jobs import defaults as job_defaults
from ...jobs.errors import BadSpec, Unsealable
from ...jobs.sealing.seals import JobSeals
from ...jobs.spec import BlobPart, SpecSeal, seal_of
from ..trainer.errors import TuningError
from ..trainer.optimiser import Shapes, tensor_shapes
from ..trainer.settings import TuningSettings
from . import defaults

NO_DATA: Final = "0" * 64
"""The digest of the rows that a sealed fine-tuning shows."""
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
    from which it begins, if it does not begin at step 0. A sealed one shows zeros as `data`, and no
    `name`; rows and checkpoints are sealed for the members of the author's group.
    """

    root: Root
    settings: TuningSettings
    rows: SizedBlob
    data: Root
    name: str = ""  # by which the author calls the model
    start: SizedBlob | None = None
    seal: SpecSeal | None = None

    def check(self) -> None:
        """Raise ValueError if the values contradict each other or exceed a limit."""
        if self.seal is not None:
            self.seal.check()
            if not self.seal.hidden or self.name or self.data != NO_DATA:
                raise ValueError("a sealed fine-tuning shows its data, or hides nothing")
        check_text(self.name, _NAME_BYTES)
        if self.settings.root != self.root:
            raise ValueError("the settings are for another model")
        self.settings.check()
        if self.settings.full:
            raise ValueError("a fine-tuning of all weights does not move")
        if self.settings.together:
            raise ValueError("a fine-tuning that is averaged with others does not move")
        if self.rows.size > job_defaults.INPUT_BYTES:
            raise ValueError(f"the rows of a job have at most {job_defaults.INPUT_BYTES} bytes")


def pack_tuning(spec: TuningSpec) -> bytes:
    """Encode a spec. Raises BadSpec if it has too many bytes for a feed."""
    fields = spec.fields()
    first: dict[str, object] = {
        name: fields.pop(name) for name in ("root", "seal") if name in fields
    }
    packed = pack({**first, **fields})
    if len(packed) > state_defaults.JOB_SPEC_BYTES:
        raise BadSpec(f"the spec of a job has at most {state_defaults.JOB_SPEC_BYTES} bytes")
    return packed


def read_tuning(data: bytes) -> TuningSpec:
    """Decode the spec of another node's fine-tuning. Raises BadSpec if it is invalid."""
    keys = seal_of(data)
    try:
        spec = typed(TuningSpec, read_fields(data))
        if (spec.seal is None) != (keys is None):
            raise BadSpec("invalid fine-tuning: its seal is not behind the root")
        return spec
    except (BadFact, Undecodable) as error:
        raise BadSpec(f"invalid fine-tuning: {error}") from None


class _HiddenTuning(Message, frozen=True):
    """The fields of a fine-tuning that are sealed."""

    data: Root
    name: str = ""

    def check(self) -> None:
        """Raise ValueError if the name is too long or not printable."""
        check_text(self.name, _NAME_BYTES)


def sealed_tuning(
    spec: TuningSpec, job: Job, seals: JobSeals, secret: tuple[bytes, bytes]
) -> TuningSpec:
    """Return the spec of a fine-tuning of this node with a seal."""
    seal = seals.hide(job, pack(_HiddenTuning(spec.data, spec.name)), secret)
    return replace(spec, seal=seal, data=NO_DATA, name="")


def opened_tuning(spec: TuningSpec, job: Job, seals: JobSeals | None) -> TuningSpec:
    """Return the spec of a fine-tuning with what is sealed in it.

    Raises Unsealable if this node cannot open it, and BadSpec if something else is in it.
    """
    if spec.seal is None:
        return spec
    if seals is None:
        raise Unsealable("this node has no keys of a group", "no-key")
    data = seals.reveal(job, spec.seal)
    try:
        said = typed(_HiddenTuning, decode(data, limit=state_defaults.JOB_SPEC_BYTES, once=True))
    except Undecodable as error:
        raise BadSpec(f"invalid fine-tuning: {error}") from None
    return replace(spec, data=said.data, name=said.name, seal=None)


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
    return 4 * 4 * sum(map(math.prod, every))
