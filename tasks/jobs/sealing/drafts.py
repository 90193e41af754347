"""Sealing of a whole job before it is submitted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from ....state.views.jobs import Job, job_id
from ....transport.identity import PeerId
from .. import defaults
from ..spec import JobSpec
from ..submitting import too_large
from ..wholes import NewJob
from .seals import JobSeals

UNKNOWN_ROOT: Final = "0" * 64
"""The root in the specs of a job whose rows are not stored yet."""


@dataclass(frozen=True, slots=True)
class SealedDraft:
    """A job that is being sealed. `data` is to be stored as a blob, or b"" if the rows are in the
    specs. `secret` is (mark, secret) of the group, or None if inputs are not sealed."""

    seals: JobSeals
    new: NewJob
    jobs: Sequence[Job]
    specs: Sequence[JobSpec]
    data: bytes
    secret: tuple[bytes, bytes] | None

    def sealed(self, blob: str) -> NewJob:
        """Return the job with sealed pieces. `blob` is the root of `data`."""
        pieces = list[tuple[JobSpec, int]]()
        for job, spec in zip(self.jobs, self.specs, strict=True):
            if spec.blob is not None:
                part = structs.replace(spec.blob, root=blob, size=len(self.data))
                spec = replace(spec, blob=part)
            pieces.append((self.seals.with_seal(job, spec, self.secret), job.rows))
        return replace(self.new, pieces=pieces)


def sealed_draft(
    seals: JobSeals, author: PeerId, new: NewJob, data: bytes, secret: tuple[bytes, bytes] | None
) -> SealedDraft:
    """Seal the rows of a job that has a nonce. Blocking: it takes up to a second.

    `data` has the rows of the pieces whose specs name parts of a blob. Raises JobError
    `input-too-large` if they are too large when they are sealed.
    """
    first = job_id(author, new.nonce + bytes(2))
    jobs, specs, blob = list[Job](), list[JobSpec](), bytearray()
    for part, (spec, rows) in enumerate(new.pieces):
        job = Job(
            job_id(author, new.nonce + part.to_bytes(2)), author, new.kind,
            of=first if part else "", part=part, parts=len(new.pieces), rows=rows,
        )  # fmt: skip
        if secret is not None and (at := spec.blob) is not None:
            begun = len(blob)
            lines = spec.first, spec.last
            blob += seals.seal_rows(job, data[at.start : at.stop], secret, lines)
            spec = replace(spec, blob=structs.replace(at, start=begun, stop=len(blob)))
        jobs.append(job)
        specs.append(spec)
    if len(blob) > defaults.INPUT_BYTES:
        raise too_large(len(blob))
    return SealedDraft(seals, new, jobs, specs, bytes(blob) or data, secret)
