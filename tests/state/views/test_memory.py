"""The weight of an author covers the memory that its facts take in the views."""

import gc
import linecache
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

import msgpack
import pytest

from shoal.state import defaults
from shoal.state.feeds.entry import FeedName
from shoal.state.feeds.feed import Document, snapshot
from shoal.state.feeds.kinds import KINDS
from shoal.state.views.jobs import job_id
from shoal.state.views.views import Views
from shoal.transport.identity import PeerId, peer_id_of

Fact = tuple[str, dict[str, Any]]
RANDOM = Random(1)


def root() -> str:
    return f"{RANDOM.getrandbits(256):064x}"


def peer() -> PeerId:
    return peer_id_of(RANDOM.randbytes(32))


def claim(_: PeerId) -> Fact:
    return root(), {"attempt": 1}


def shard(_: PeerId) -> Fact:
    return f"0{root()[1:]}/0", {"start": 0, "stop": 1}


def model(_: PeerId) -> Fact:
    return f"{RANDOM.getrandbits(40):x}", {"root": root(), "layers": 1, "bytes": 1}


def usage(_: PeerId) -> Fact:
    return f"{peer()}/{root()}", {}


def job(author: PeerId) -> Fact:
    nonce = RANDOM.randbytes(16)
    return job_id(author, nonce), {"kind": root()[:32], "nonce": nonce}


def picky_job(author: PeerId, refused: int = 20) -> Fact:
    key, fact = job(author)
    needs = [root() for _ in range(defaults.JOB_DEPENDENCIES)]
    return key, {**fact, "refused": [peer() for _ in range(refused)], "needs": needs}


def pickiest_job(author: PeerId) -> Fact:
    return picky_job(author, defaults.JOB_REFUSED)


def is_table(trace: tracemalloc.Trace) -> bool:
    """Whether it is the interpreter's table of interned strings, which grows in leaps for the whole
    process."""
    (frame,) = trace.traceback
    line = linecache.getline(frame.filename, frame.lineno)
    return trace.size > 2**16 and "sys.intern" in line


def full(kind: str, author: PeerId, make: Callable[[PeerId], Fact]) -> Document:
    """Return a feed with as many such facts as it may hold."""
    limits, facts = KINDS[kind], dict[str, bytes]()
    room = limits.live_bytes - 2_000
    while room > 0 and len(facts) < limits.keys:
        key, value = make(author)
        facts[key] = msgpack.packb(value)
        room -= len(key) + len(facts[key]) + 25
    document = Document(limits, 1)
    document.apply(snapshot(limits, 1, facts))
    return document


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("claims", claim),
        ("shards", shard),
        ("models", model),
        ("usage", usage),
        ("jobs", job),
        ("jobs", picky_job),
        ("jobs", pickiest_job),
    ],
)
@pytest.mark.usefixtures("own_garbage")
def test_facts_take_no_more_than_they_weigh(kind: str, make: Callable[[PeerId], Fact]) -> None:
    views, weight, bare = Views(), 0, 0
    said = []
    for _ in range(4):
        author = peer()
        document = full(kind, author, make)
        weight += document.shown_memory
        bare += document.live_bytes
        said.append((FeedName(author, kind, 0), document))
    gc.collect()
    tracemalloc.start()
    try:
        for name, document in said:
            views.restored(name, document.facts())
        gc.collect()
        traces = tracemalloc.take_snapshot().traces
    finally:
        tracemalloc.stop()
    taken = sum(trace.size for trace in traces if not is_table(trace))
    assert views.bad == 0
    assert 0.5 * weight < taken <= weight
    assert taken > 1.9 * bare, "their bytes alone would not bound it"
