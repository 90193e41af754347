"""A document accepts updates within the grammar and its limits, and is unchanged by others."""

from dataclasses import replace

import pytest
from pycrdt import Doc, Map

from shoal.state import defaults
from shoal.state.errors import BadUpdate
from shoal.state.feeds import feed as module
from shoal.state.feeds.feed import Document, snapshot
from shoal.state.feeds.kinds import KINDS
from shoal.state.feeds.scan import EMPTY, ROOT, Changes

CLIENT = 77
JOBS = KINDS["jobs"]


def filled(**facts: bytes) -> Document:
    document = Document(JOBS, CLIENT)
    document.apply(snapshot(JOBS, CLIENT, facts))
    return document


def state_of(document: Document) -> tuple[object, ...]:
    doc = document.doc
    return doc.get_update(), document.facts(), document.live_bytes, document.memory


def test_facts_are_read_as_written() -> None:
    document = filled(a=b"1", b=b"2")
    update = document.write({"c": b"3", "a": None, "b": b"4"})
    assert document.facts() == {"a": b"1", "b": b"2"}, "written is not applied"
    assert document.apply(update) == {"c": b"3", "b": b"4", "a": None}
    assert document.facts() == {"b": b"4", "c": b"3"}
    assert (document.get("b"), document.get("a"), document.get("z")) == (b"4", None, None)
    assert document.named == 3


def test_copies_are_equal() -> None:
    document, copy = filled(a=b"1"), Document(JOBS, CLIENT)
    updates = [snapshot(JOBS, CLIENT, {"a": b"1"})]
    for number in range(50):
        changes = {f"{number % 7}": bytes([number]), "a": None if number % 3 == 0 else b"x"}
        if document.get("a") is None and changes["a"] is None:
            del changes["a"]
        updates.append(document.write(changes))
        document.apply(updates[-1])
    for update in updates:
        copy.apply(update)
    assert state_of(copy) == state_of(document)


def test_a_refused_update_leaves_no_trace() -> None:
    """Control: without the grammar the same bytes stay in the document forever."""
    other: Doc[Map[bytes]] = Doc(client_id=5)
    other.get(ROOT, type=Map)["evil"] = b"1"
    document = filled(a=b"1")
    before = state_of(document)
    with pytest.raises(BadUpdate):
        document.apply(other.get_update())
    assert state_of(document) == before


def test_without_the_grammar_pycrdt_accepts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def anything(ledger: object, update: bytes) -> Changes:
        return {}

    other: Doc[Map[bytes]] = Doc(client_id=5)
    other.get(ROOT, type=Map)["evil"] = b"1"
    document = filled(a=b"1")
    monkeypatch.setattr(module, "read_update", anything)
    document.apply(other.get_update())
    assert "evil" in document.facts()


def test_the_limits_of_a_kind_are_enforced() -> None:
    small = replace(JOBS, live_bytes=100, keys=3)
    document = Document(small, CLIENT)
    document.apply(snapshot(small, CLIENT, {"a": bytes(20), "b": bytes(20)}))
    before = state_of(document)
    for changes in ({"c": bytes(20)}, {"a": bytes(70)}, {"c": b"", "d": b""}):
        with pytest.raises(BadUpdate) as error:
            document.apply(document.write(changes))
        assert error.value.code == "too-large"
        assert state_of(document) == before
    document.apply(document.write({"c": b"", "a": None, "b": bytes(20)}))
    with pytest.raises(BadUpdate) as error:
        document.apply(document.write({"d": b""}))
    assert error.value.code == "too-large", "a deleted key counts in its epoch"
    document.apply(document.write({"a": b"", "b": b""}))


def test_snapshots_stay_within_the_limits_of_their_kind() -> None:
    small = replace(JOBS, live_bytes=100, keys=3)
    assert snapshot(small, CLIENT, {}) == EMPTY
    for facts in ({"a": bytes(90)}, dict.fromkeys("abcd", b"")):
        with pytest.raises(BadUpdate) as error:
            snapshot(small, CLIENT, facts)
        assert error.value.code == "too-large"


def test_the_reported_memory_bounds_the_largest_document() -> None:
    document = Document(JOBS, CLIENT)
    keys = [f"{number:03x}" for number in range(JOBS.keys)]
    document.apply(snapshot(JOBS, CLIENT, dict.fromkeys(keys, b"")))
    assert document.memory > JOBS.keys * defaults.DOCUMENT_KEY_BYTES
    before = document.memory
    document.apply(document.write(dict.fromkeys(keys[:1000], b"")))
    assert document.memory - before > 1000 * defaults.DOCUMENT_ITEM_BYTES
