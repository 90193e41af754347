"""The parser accepts what our documents write, byte for byte as pycrdt does, and nothing else."""

import random
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pycrdt import Array, Doc, Map, Text

from shoal.state import defaults
from shoal.state.errors import BadUpdate
from shoal.state.feeds.scan import (
    EMPTY,
    HEADER_BYTES,
    ROOT,
    DocumentFacts,
    fact_bytes,
    read_update,
    write_update,
)

CLIENT = 0xFFFFFFF0  # a number of five bytes, as most derived ids are
KEYS = st.sampled_from(["a", "b", "c", "d\xe4", "\0", "\u2028 \U0001f600", "k" * 256])
VALUES = st.one_of(
    st.none(),
    st.binary(max_size=3),
    st.sampled_from([bytes(127), bytes(128), bytes(defaults.FACT_BYTES)]),
)
HISTORY = st.lists(st.dictionaries(KEYS, VALUES))

GOLDEN: list[tuple[dict[str, bytes | None], str]] = [
    ({"a": b"one"}, "0101b96000280105666163747301610174036f6e6500"),
    ({"b": b"two"}, "0101b960012801056661637473016201740374776f00"),
    ({"a": b"three"}, "0101b96002a8b96000017405746872656501b960010001"),
    (
        {"a": b"x", "c": b"c"},
        "0102b96003a8b9600201740178280105666163747301630174016301b960010201",
    ),
    ({"b": None}, "0001b960010101"),
    ({"b": b"again", "c": None, "a": None}, "0101b96005a8b96001017405616761696e01b960010302"),
    (
        {"d": bytes(130), "b": None, "a": b""},
        "0102b96006280105666163747301640174" + "8201" + "00" * 130 + "a8b9600301740001b960010501",
    ),
]
MUTATED: list[dict[str, bytes | None]] = [
    {"a": b"4"},
    {"new": b"5", "gone": b"6"},
    {"a": b"7", "d": b"8", "b": None},
    {"c": None, "a": None},
    {"b": bytes(130)},
]


def number(value: int) -> bytes:
    """Return a varint."""
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + number(rest) if rest else bytes([low])


def deletions(runs: list[tuple[int, int]], client: int = CLIENT) -> bytes:
    """Return deletions of a client's items, in any order."""
    told = b"".join(number(start) + number(length) for start, length in runs)
    return b"\1" + number(client) + number(len(runs)) + told


def written(client: int, steps: Iterable[Mapping[str, bytes | None]]) -> list[bytes]:
    """Return the updates that a pycrdt document writes, with one transaction for each step."""
    doc: Doc[Map[bytes]] = Doc(client_id=client)
    facts = doc.get(ROOT, type=Map)
    updates: list[bytes] = []
    doc.observe(lambda event: updates.append(event.update))
    for step in steps:
        with doc.transaction():
            for key, value in step.items():
                if value is None:
                    del facts[key]
                else:
                    facts[key] = value
    return updates


def possible(steps: Iterable[Mapping[str, bytes | None]]) -> list[dict[str, bytes | None]]:
    """Return the steps without deletions of missing keys, and without empty steps."""
    held: set[str] = set()
    kept = []
    for step in steps:
        step = {key: value for key, value in step.items() if value is not None or key in held}
        held = {key for key in held | step.keys() if step.get(key, b"") is not None}
        if step:
            kept.append(step)
    return kept


def ledger_after(*steps: Mapping[str, bytes | None]) -> DocumentFacts:
    ledger = DocumentFacts(CLIENT, 1000)
    for step in steps:
        ledger.record(step)
    return ledger


@given(HISTORY)
@example([{"a": b"1"}, {"a": None}, {"a": b"2", "b": b"3"}, {"b": None, "a": b"4"}])
@settings(deadline=None)
def test_we_write_what_pycrdt_writes_and_read_it_back(
    history: list[dict[str, bytes | None]],
) -> None:
    steps = possible(history)
    ledger = DocumentFacts(CLIENT, 1000)
    for step, update in zip(steps, written(CLIENT, steps), strict=True):
        assert write_update(ledger, step) == update
        changes = read_update(ledger, update)
        assert changes == step
        ledger.record(changes)


def test_golden_updates() -> None:
    """The bytes that pycrdt 0.14.13 wrote are the wire format, whatever a later pycrdt writes."""
    ledger = DocumentFacts(12345, 1000)
    for step, golden in GOLDEN:
        update = bytes.fromhex(golden)
        assert write_update(ledger, step) == update
        assert read_update(ledger, update) == step
        ledger.record(step)
    assert written(12345, [step for step, _ in GOLDEN]) == [bytes.fromhex(g) for _, g in GOLDEN]


def refusal(ledger: DocumentFacts, update: bytes) -> str:
    with pytest.raises(BadUpdate) as error:
        read_update(ledger, update)
    return error.value.message


@pytest.mark.parametrize("bomb", ["8088debe01", "80c2d72f"])
def test_the_published_bombs_are_refused(bomb: str) -> None:
    assert refusal(DocumentFacts(CLIENT, 1000), bytes.fromhex(bomb))


def test_in_pycrdt_a_bomb_takes_the_memory_it_asks_for() -> None:
    """Control: four bytes make pycrdt itself take over 100 MiB."""
    code = (
        "import resource, pycrdt\n"
        "try: pycrdt.Doc().apply_update(bytes.fromhex('80c2d72f'))\n"
        "except ValueError: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert int(done.stdout) > 100 * 2**10


BEGUN: dict[str, bytes | None] = {"a": b"1", "b": b"2", "c": b"3", "gone": b""}
GONE: dict[str, bytes | None] = {"gone": None}


def base() -> DocumentFacts:
    """Return a document with three facts and a deleted one; four clocks are used."""
    return ledger_after(BEGUN, GONE)


def base_doc(client: int = CLIENT) -> tuple["Doc[Map[object]]", "Map[object]", list[bytes]]:
    """Return `base` as a pycrdt document, and the list of updates that it will write."""
    doc: Doc[Map[object]] = Doc(client_id=client)
    for update in written(CLIENT, [BEGUN, GONE]):
        doc.apply_update(update)
    updates: list[bytes] = []
    doc.observe(lambda event: updates.append(event.update))
    return doc, doc.get(ROOT, type=Map), updates


def other_root(doc: "Doc[Map[object]]", facts: "Map[object]") -> None:
    doc.get("others", type=Map)["a"] = b"1"


def text_root(doc: "Doc[Map[object]]", facts: "Map[object]") -> None:
    text: Text = cast("Doc[Text]", doc).get("text", type=Text)
    text.insert(0, "much")


def set_each(*values: object) -> Callable[["Doc[Map[object]]", "Map[object]"], None]:
    def write(doc: "Doc[Map[object]]", facts: "Map[object]") -> None:
        for value in values:
            facts["a"] = value

    return write


FOREIGN: dict[str, Callable[["Doc[Map[object]]", "Map[object]"], None]] = {
    "another root": other_root,
    "a text": text_root,
    "a string": set_each("text"),
    "a number": set_each(7),
    "nothing": set_each(None),
    "a map of values": set_each({"x": b"1"}),
    "a list of values": set_each([b"1", b"2"]),
    "a nested map": set_each(Map({"x": b"1"})),
    "a nested list": set_each(Array([b"1"])),
    "a nested text": set_each(Text("x")),
    "a key twice": set_each(b"1", b"2"),
    "too large a value": set_each(bytes(defaults.FACT_BYTES + 1)),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_unknown_content_is_refused(name: str) -> None:
    """Control: pycrdt accepts each of these."""
    doc, facts, updates = base_doc()
    with doc.transaction():
        FOREIGN[name](doc, facts)
    (update,) = updates
    assert refusal(base(), update)
    copy, _, _ = base_doc()
    before = copy.get_state()
    copy.apply_update(update)
    assert copy.get_state() != before


def test_a_value_set_and_deleted_at_once_is_refused() -> None:
    doc, facts, updates = base_doc()
    with doc.transaction():
        facts["new"] = b"1"
        del facts["new"]
    assert refusal(base(), updates[0])


def test_another_client_is_refused() -> None:
    """Control: pycrdt would let any client set or delete any key."""
    _, facts, updates = base_doc(client=7)
    facts["new"] = b"1"
    facts["a"] = b"1"
    for update in [*updates, b"\0" + deletions([(0, 1)], client=7)]:
        assert refusal(base(), update)
    copy, held, _ = base_doc()
    for update in updates:
        copy.apply_update(update)
    assert held.to_py() != {"a": b"1", "b": b"2", "c": b"3"}


def test_updates_only_continue_the_document() -> None:
    """Control: pycrdt keeps items that depend on missing ones indefinitely."""
    steps: list[dict[str, bytes | None]] = [{"d": b"4"}, {"d": b"5"}, {"e": b"6"}, {"d": None}]
    updates = written(CLIENT, [BEGUN, GONE, *steps])
    ledger = base()
    for later in updates[3:]:
        assert refusal(ledger, later)
    for seen in updates[:2]:
        assert refusal(ledger, seen)
    assert read_update(ledger, updates[2]) == steps[0]
    copy, _, _ = base_doc()
    state = copy.get_state()
    copy.apply_update(updates[4])
    assert copy.get_state() == state and len(copy.get_update()) > len(base_doc()[0].get_update())


def test_missing_keys_cannot_be_deleted() -> None:
    for clock in (3, 4, 2**31):
        assert refusal(base(), b"\0" + deletions([(clock, 1)]))
    assert refusal(base(), b"\0" + deletions([(0, 2**32 - 1)]))
    assert read_update(base(), b"\0" + deletions([(0, 3)])) == {"a": None, "b": None, "c": None}
    with pytest.raises(BadUpdate):
        write_update(base(), {"gone": None})


def item(origin: bytes, value: bytes = b"x") -> bytes:
    return origin + b"\1\x74" + number(len(value)) + value


def items(*told: bytes, clock: int = 4) -> bytes:
    return b"\1" + number(len(told)) + number(CLIENT) + number(clock) + b"".join(told)


def later(clock: int) -> bytes:
    return b"\xa8" + number(CLIENT) + number(clock)


def test_an_item_follows_the_last_of_its_key() -> None:
    """Control: pycrdt would have to sort an item that follows an earlier one in among later
    ones."""
    good = items(item(later(0))) + deletions([(0, 1)])
    ledger = base()
    assert read_update(ledger, good) == {"a": b"x"}
    ledger.record({"a": b"x"})
    assert refusal(ledger, items(item(later(0)), clock=5) + b"\0")
    assert read_update(ledger, items(item(later(4)), clock=5) + deletions([(4, 1)])) == {"a": b"x"}


def test_a_key_is_added_once_and_set_once() -> None:
    first = b"\x28\1\5facts\1"
    assert read_update(base(), items(item(first + b"n")) + b"\0") == {"n": b"x"}
    assert refusal(base(), items(item(first + b"a")) + deletions([(0, 1)]))
    assert refusal(base(), items(item(first + b"gone")) + b"\0")
    assert refusal(base(), items(item(first + b"n"), item(first + b"n")) + b"\0")
    assert refusal(base(), items(item(later(0)), item(later(0))) + deletions([(0, 1)]))
    assert refusal(base(), items(item(later(3)), item(later(3))) + b"\0")


@pytest.mark.parametrize(
    "runs", [[], [(0, 0)], [(0, 1), (1, 1)], [(2, 1), (0, 1)], [(0, 1), (0, 1)], [(0, 2), (1, 1)]]
)
def test_deletions_must_be_canonical(runs: list[tuple[int, int]]) -> None:
    assert refusal(base(), b"\0" + deletions(runs))


def test_numbers_must_be_canonical() -> None:
    good = write_update(DocumentFacts(5, 1000), {"a": b"1"})
    assert good.startswith(b"\x01\x01\x05\x00")
    for long in (b"\x81\x00\x01\x05\x00", b"\x01\x81\x00\x05\x00", b"\x01\x01\x85\x00\x00"):
        assert refusal(DocumentFacts(5, 1000), long + good[4:])
    assert refusal(DocumentFacts(5, 1000), b"\xff" * 5 + good)
    assert refusal(DocumentFacts(5, 1000), good + b"\0")


@pytest.mark.parametrize("key", [b"", b"\xff", b"\xed\xa0\x80", b"k" * 257], ids=len)
def test_keys_are_text(key: bytes) -> None:
    """pycrdt assumes without a check that the bytes of a text are UTF-8."""
    good = write_update(DocumentFacts(5, 1000), {"K": b"1"})
    length = bytes([len(key)]) if len(key) < 128 else bytes([len(key) & 127 | 128, len(key) >> 7])
    assert refusal(DocumentFacts(5, 1000), good.replace(b"\x01K", length + key))


def test_items_are_limited_by_the_keys() -> None:
    facts = {f"{number}": b"" for number in range(20)}
    update = write_update(DocumentFacts(5, 20), facts)
    assert read_update(DocumentFacts(5, 20), update) == facts
    assert refusal(DocumentFacts(5, 19), update)


def test_an_empty_document_can_be_written() -> None:
    assert write_update(DocumentFacts(5, 1000), {}) == EMPTY
    assert read_update(DocumentFacts(5, 1000), EMPTY) == {}


@pytest.mark.parametrize(
    "fact", [("k" * 257, b""), ("", b""), ("k", bytes(defaults.FACT_BYTES + 1))], ids=len
)
def test_facts_that_are_too_large_are_not_written(fact: tuple[str, bytes]) -> None:
    with pytest.raises(BadUpdate):
        write_update(DocumentFacts(5, 1000), dict([fact]))


@given(HISTORY)
@settings(deadline=None)
def test_a_snapshot_is_never_larger_than_the_ledger_says(
    history: list[dict[str, bytes | None]],
) -> None:
    ledger = DocumentFacts(CLIENT, 1000)
    facts: dict[str, bytes] = {}
    for step in possible(history):
        ledger.record(step)
        facts |= {key: value for key, value in step.items() if value is not None}
        facts = {key: value for key, value in facts.items() if step.get(key, b"") is not None}
    assert ledger.live.keys() == facts.keys()
    assert ledger.live_bytes == HEADER_BYTES + sum(fact_bytes(*fact) for fact in facts.items())
    assert (
        0
        <= ledger.live_bytes - len(write_update(DocumentFacts(CLIENT, 1000), facts))
        <= 15 + 3 * len(facts)
    )


def mutated(rng: random.Random, update: bytes) -> bytes:
    """Return the update with random bytes changed, doubled, left out or moved."""
    data = bytearray(update)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if at < len(data):
                data[at] = rng.choice((rng.randrange(256), data[at] ^ 1 << rng.randrange(8)))
            case 1:
                data[at:at] = bytes(rng.choices((0, 1, 4, 127, 128, 255), k=rng.randrange(1, 4)))
            case 2:
                del data[at : at + rng.randrange(1, 4)]
            case 3:
                data[at:at] = data[rng.randrange(len(data) + 1) :][: rng.randrange(1, 12)]
            case _:
                del data[at:]
    return bytes(data)


def test_accepted_mutated_updates_are_ones_we_could_have_written() -> None:
    """And pycrdt reads the same changes in it as we do."""
    rng = random.Random(6)
    taken = 0
    for _ in range(20_000):
        step = rng.choice(MUTATED)
        update = mutated(rng, write_update(base(), step))
        try:
            changes = read_update(base(), update)
        except BadUpdate:
            continue
        taken += 1
        assert write_update(base(), changes) == update
        if taken % 10 == 0:
            doc, facts, _ = base_doc()
            doc.apply_update(update)
            ledger = base()
            ledger.record(changes)
            assert (facts.to_py() or {}).keys() == ledger.live.keys()
            assert all(facts[key] == value for key, value in changes.items() if value is not None)
            assert doc.get_state()[6:] == number(ledger.clock), "nothing is left pending"
    assert taken > 200


def test_the_time_of_reading_is_proportional_to_the_size() -> None:
    """Eight times the keys take about 8 times the CPU time, at most 24; quadratic would be 64."""
    times = []
    for keys in (500, 4000):
        ledger = DocumentFacts(CLIENT, 5000)
        update = write_update(ledger, {f"{n:04}": b"" for n in range(keys)})
        times.append(
            min(
                timeit.repeat(
                    partial(read_update, ledger, update),
                    timer=time.process_time,
                    repeat=3,
                    number=3,
                )
            )
        )
    assert times[1] < 24 * times[0]
