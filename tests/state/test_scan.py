"""What a document of ours writes is taken, to the byte as pycrdt writes it; nothing else is."""

from collections.abc import Iterable, Mapping

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pycrdt import Doc, Map

from shoal.state import defaults
from shoal.state.scan import ROOT, Ledger, read_update, write_update

CLIENT = 0xFFFFFFF0  # a number of five bytes, as most derived ids are
KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
VALUES = st.one_of(
    st.none(),
    st.binary(max_size=3),
    st.sampled_from([bytes(127), bytes(128), bytes(defaults.FACT_BYTES)]),
)
HISTORY = st.lists(st.dictionaries(st.sampled_from(["a", "b", "c", "dä", "e", "f"]), VALUES))


def written(client: int, steps: Iterable[Mapping[str, bytes | None]]) -> list[bytes]:
    """What a pycrdt document writes for each step in one transaction, its own way."""
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
    """The steps without deletions of what is not there, and without those that do nothing."""
    held: set[str] = set()
    kept = []
    for step in steps:
        step = {key: value for key, value in step.items() if value is not None or key in held}
        held = {key for key in held | step.keys() if step.get(key, b"") is not None}
        if step:
            kept.append(step)
    return kept


def ledger_after(*steps: Mapping[str, bytes | None]) -> Ledger:
    ledger = Ledger(CLIENT)
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
    ledger = Ledger(CLIENT)
    for step, update in zip(steps, written(CLIENT, steps), strict=True):
        assert write_update(ledger, step) == update
        changes = read_update(ledger, update)
        assert changes == step
        ledger.record(changes)
