"""Groups of seals: nodes that know some secrets."""

from types import SimpleNamespace
from typing import cast

from shoal.state.group.group import Group, Mark, Secrets
from shoal.state.group.sealing import mark_of
from shoal.state.views.jobs import Job, job_id
from shoal.tasks.jobs.sealing.seals import JobSeals
from shoal.tasks.jobs.spec import JobSpec, pack_spec
from shoal.transport.identity import Identity
from tests.tasks.jobs.fake_state import FakeHost

ROOT = "ab" * 32
PEOPLE = [Identity.from_seed(bytes([n]) * 32) for n in range(1, 6)]
ME, AUTHOR, WORKER = PEOPLE[0], PEOPLE[1], PEOPLE[2]


def seals(who: Identity, *secrets: int) -> JobSeals:
    """Return the seals of a member that knows these secrets, or of a node without a group."""
    known = [(number, bytes([number]) * 32) for number in secrets]
    if not known:
        return JobSeals(who, FakeHost())
    number, secret = known[0]
    newest = Mark(number, mark_of(secret)), secret
    group = SimpleNamespace(secrets=Secrets(known), fresh_secret=lambda: newest)
    return JobSeals(who, FakeHost(), lambda: cast(Group, group))


def piece(part: int = 0, author: Identity = AUTHOR, nonce: bytes = b"n" * 14) -> Job:
    """Return a piece of a job of three pieces, without a spec."""
    ids = [job_id(author.peer, nonce + n.to_bytes(2)) for n in range(3)]
    of = ids[0] if part else ""
    return Job(ids[part], author.peer, "generate", of=of, part=part, parts=3, rows=2)


def with_spec(job: Job, spec: JobSpec) -> Job:
    return Job(**{**{name: getattr(job, name) for name in job.__slots__}, "spec": pack_spec(spec)})
