"""Seals of one node: seals the inputs of its own jobs and the outputs of all jobs, and opens what
is for this node.

The author's key for the outputs of a job follows from its identity and the job's id, so nothing has
to be stored. Inputs are sealed under the newest secret of the author's group. What an envelope is
for is authenticated: author, job, piece, rows and, of an output, the node that made it and the
whole spec. Spec: docs/spec/sealing.md.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Final, Protocol

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from msgspec import Meta

from ....state import defaults as state_defaults
from ....state.group.group import Group
from ....state.group.sealing import mark_of
from ....state.views.jobs import Job
from ....transport.decoding import decode, typed
from ....transport.errors import Undecodable
from ....transport.identity import Identity, PeerId, public_key_of
from ....transport.message import Message, check_text, pack
from ...defaults import STOP_STRINGS
from .. import defaults
from ..errors import BadOutcome, BadSpec, JobError, Unsealable
from ..results import JobOutcome, failed, pack_outcome, read_long_outcome
from ..shelf import Shelves
from ..spec import NAME_BYTES, JobSpec, SpecSeal, check_stop, seal_of
from . import envelopes
from .envelopes import Unopened
from .states import StateSeal

_BOX, _OUTPUT, _SPEC, _ROWS, _STATE = (
    b"shoal/job/" + word + b"/1\0" for word in (b"box", b"output", b"spec", b"rows", b"state")
)
Lines = tuple[int, int]
"""Numbers of the first and the last line of a piece."""
LONGEST: Final = defaults.RESULT_BYTES - defaults.SEALED_MARGIN
"""The most bytes of an encoded outcome that is sealed."""


class Entropy(Protocol):
    """Source of random bytes."""

    def entropy(self, size: int) -> bytes: ...


class _Hidden(Message, frozen=True):
    """The fields of a spec that are sealed."""

    lines: Annotated[bytes, Meta(max_length=state_defaults.JOB_SPEC_BYTES)] = b""
    name: str = ""
    abstract: Annotated[bytes, Meta(max_length=4 * defaults.ABSTRACT)] = b""
    stop: Annotated[tuple[bytes, ...], Meta(max_length=STOP_STRINGS)] = ()

    def check(self) -> None:
        """Raise ValueError if a text is too long or not printable."""
        check_text(self.name, NAME_BYTES)
        check_stop(self.stop)


class JobSeals:
    """Seals and keys of one node. `group` returns its private group, or None."""

    def __init__(
        self, identity: Identity, host: Entropy, group: Callable[[], Group | None] = lambda: None
    ) -> None:
        self._identity = identity
        self._host = host
        self._group = group

    # Keys.

    def box_of(self, whole: str) -> bytes:
        """Return this node's public key for the outputs of one of its jobs."""
        return self._box(whole).public_key().public_bytes_raw()

    def _box(self, whole: str) -> X25519PrivateKey:
        return envelopes.private_key(self._identity.seed, _BOX + bytes.fromhex(whole))

    def newest(self) -> tuple[bytes, bytes]:
        """Return (mark, secret) of the group's secret for the inputs of a new job.

        Raises JobError `no-group` if this node is in no private group, and GroupRefused `not-ready`
        if the secret is not here yet or has to be replaced first.
        """
        group = self._group()
        if group is None:
            raise JobError(
                "no-group",
                "inputs are sealed for the members of a private group, and this swarm has none",
                hint="`--seal-outputs` seals the outputs; every node can then read the inputs",
            )
        mark, secret = group.fresh_secret()
        return mark.mark, secret

    def has_key(self, spec: bytes) -> bool:
        """Return whether this node can read the inputs of a job, from the beginning of its spec."""
        keys = seal_of(spec)
        return keys is None or not keys.mark or self._secret(keys.mark) is not None

    def _secret(self, mark: bytes) -> bytes | None:
        group = self._group()
        return None if group is None else group.secrets.find(mark)

    # Inputs.

    def with_seal(self, job: Job, spec: JobSpec, secret: tuple[bytes, bytes] | None) -> JobSpec:
        """Return the spec of a piece of this node with a seal. With a `secret` (mark, secret), the
        inline rows and the texts for people are sealed, too."""
        if secret is None:
            return replace(spec, seal=SpecSeal(self.box_of(job.whole)))
        stop = tuple(text.encode() for text in spec.options.stop)
        hidden = pack(_Hidden(spec.lines, spec.name, spec.abstract.encode(), stop))
        seal = self.hide(job, hidden, secret, (spec.first, spec.last))
        options = replace(spec.options, stop=())
        return replace(spec, seal=seal, lines=b"", name="", abstract="", options=options)

    def hide(
        self, job: Job, data: bytes, secret: tuple[bytes, bytes], lines: Lines = (1, 1)
    ) -> SpecSeal:
        """Return the seal of a job of this node, which hides some data."""
        place, most = _input_place(_SPEC, job, lines), defaults.SEALED_SPEC_BYTES
        hidden = self._under(secret[1], data, place, most)
        return SpecSeal(self.box_of(job.whole), secret[0], hidden)

    def seal_rows(
        self,
        job: Job,
        rows: bytes,
        secret: tuple[bytes, bytes],
        lines: Lines = (1, 1),
        most: int = defaults.PIECE_BYTES,
    ) -> bytes:
        """Return the rows of a piece of this node, sealed for a blob, with `most` bytes if they
        fit."""
        return self._under(secret[1], rows, _input_place(_ROWS, job, lines), most)

    def _under(self, secret: bytes, data: bytes, place: bytes, most: int) -> bytes:
        salt = self._host.entropy(envelopes.SEED_BYTES)
        return envelopes.seal_under(secret, data, place, salt, most)

    def opened(self, job: Job, spec: JobSpec) -> JobSpec:
        """Return a spec with what is sealed in it. Rows in a blob stay sealed.

        Raises Unsealable if this node cannot open it, and BadSpec if something else is in it.
        """
        if spec.seal is None or not spec.seal.hidden:
            return spec
        data = self.reveal(job, spec.seal, (spec.first, spec.last))
        try:
            said = typed(_Hidden, decode(data, limit=state_defaults.JOB_SPEC_BYTES, once=True))
            stop = tuple(text.decode() for text in said.stop)
            abstract = said.abstract.decode()[: defaults.ABSTRACT]
        except (Undecodable, UnicodeDecodeError) as error:
            raise BadSpec(f"invalid job: {error}") from None
        if bool(said.lines) == (spec.blob is not None):
            raise BadSpec("invalid job: expected either rows or a blob with rows")
        options = replace(spec.options, stop=stop)
        return replace(spec, lines=said.lines, name=said.name, abstract=abstract, options=options)

    def reveal(self, job: Job, seal: SpecSeal, lines: Lines = (1, 1)) -> bytes:
        """Return what a seal hides. Raises Unsealable if this node cannot open it."""
        return self._opened(job, seal, seal.hidden, _input_place(_SPEC, job, lines))

    def open_rows(self, job: Job, seal: SpecSeal, rows: bytes, lines: Lines = (1, 1)) -> bytes:
        """Return the rows of a piece that are sealed in a blob. Raises Unsealable if this node
        cannot open them."""
        return self._opened(job, seal, rows, _input_place(_ROWS, job, lines))

    def _opened(self, job: Job, seal: SpecSeal, envelope: bytes, place: bytes) -> bytes:
        secret = self._secret(seal.mark)
        if secret is None:
            raise Unsealable(
                f"{piece_words(job)} is sealed under a key of the group that is not here", "no-key"
            )
        try:
            return envelopes.open_under(secret, envelope, place)
        except Unopened:
            raise Unsealable(f"the rows of {piece_words(job)} cannot be opened") from None

    def state_seal(self, job: Job, mark: bytes = b"") -> StateSeal:
        """Return the seal of the state of a job, under the secret with this mark. Without a mark,
        it opens what any secret of the group has sealed."""
        group = self._group()
        known = [] if group is None else [secret for _, secret in group.secrets.known()]
        secrets = [secret for secret in known if not mark or mark_of(secret) == mark]
        return StateSeal(secrets, _place(_STATE, job), piece_words(job))

    # Outputs.

    def seal_outcome(self, job: Job, outcome: JobOutcome) -> bytes | None:
        """Return an outcome of this node's work, sealed for the job's author. Return None if the
        outputs of the job are not sealed, or its key is invalid."""
        keys = seal_of(job.spec)
        if keys is None:
            return None
        data = pack_outcome(outcome)
        if len(data) > LONGEST:
            data = pack_outcome(failed("too-large", f"the output has {len(data)} bytes"))
        seed, place = self._host.entropy(envelopes.SEED_BYTES), output_place(job, self._own)
        try:
            return envelopes.seal_for(keys.box, data, place, seed, defaults.RESULT_BYTES)
        except ValueError:  # a point of low order: the author cannot open anything anyway
            return None

    @property
    def _own(self) -> PeerId:
        return self._identity.peer

    def open_outcome(self, job: Job, claimant: PeerId, envelope: bytes) -> JobOutcome:
        """Return the outcome that a claimant has sealed for one of this node's jobs.

        Raises Unsealable or BadOutcome if it is none.
        """
        try:
            data = envelopes.open_for(self._box(job.whole), envelope, output_place(job, claimant))
        except Unopened:
            raise Unsealable(f"the output of {piece_words(job)} cannot be opened") from None
        outcome = read_long_outcome(data)
        if outcome.blob or outcome.sealed:
            raise BadOutcome(f"the output of {piece_words(job)} is sealed twice")
        if outcome.error == "bad-seal":
            raise BadOutcome(f"the node that did {piece_words(job)} says that it cannot open it")
        return outcome


async def rows_of(job: Job, spec: JobSpec, shelf: Shelves, seals: JobSeals | None) -> bytes:
    """Return the rows of a piece whose spec was opened, from its blob if they are in one.

    Raises ModelError or BadOutcome if the blob cannot be fetched, and Unsealable.
    """
    if spec.blob is None:
        return spec.lines
    data = await shelf.read(spec.blob, job.author)
    if spec.seal is None or not spec.seal.hidden or seals is None:
        return data
    return seals.open_rows(job, spec.seal, data, (spec.first, spec.last))


def piece_words(job: Job) -> str:
    """Name a piece for people."""
    return f"piece {job.part + 1} of {job.parts} of job {job.whole[:16]}"


def _place(domain: bytes, job: Job) -> bytes:
    """Return what all envelopes of a piece have in their context."""
    ids = bytes.fromhex(job.whole) + bytes.fromhex(job.id)
    numbers = b"".join(each.to_bytes(4) for each in (job.part, job.parts, job.rows))
    return domain + public_key_of(job.author) + ids + numbers


def _input_place(domain: bytes, job: Job, lines: Lines) -> bytes:
    return _place(domain, job) + lines[0].to_bytes(8) + lines[1].to_bytes(8)


def output_place(job: Job, claimant: PeerId) -> bytes:
    """Return the context of an output. The hash of the spec stands for its rows and options."""
    return _place(_OUTPUT, job) + hashlib.sha256(job.spec).digest() + public_key_of(claimant)
