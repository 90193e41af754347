"""Inspection of the state: histories, damage on disk, and readable values."""

import json
from typing import Any

import msgpack
import pytest
import trio

from shoal.state import defaults
from shoal.state.errors import StateError
from shoal.state.feeds.entry import FeedName
from shoal.state.feeds.store import Store
from shoal.state.feeds.stored import entry_sum
from shoal.state.inspection import readable
from shoal.transport.identity import Identity
from tests.state.chains import identity
from tests.state.test_service import MODEL, Swarm, run


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"a": b"\x01", "b": [b"\x02", {b"k": 1}]}, {"a": "01", "b": ["02", {"6b": 1}]}),
        (
            {"n": float("nan"), "i": float("-inf"), "x": 2**60},
            {"n": "nan", "i": "-inf", "x": 2**60},
        ),
        ({1: None}, "8101c0"),  # no view accepts such a fact
    ],
)
def test_values_are_readable(value: object, shown: object) -> None:
    assert readable(msgpack.packb(value)) == shown
    json.dumps(readable(msgpack.packb(value)), allow_nan=False)


def test_invalid_msgpack_is_shown_in_hex() -> None:
    assert readable(b"\xc1") == "c1"
    assert readable(b"\x91" * 5000) == "91" * 5000


def test_history_of_a_feed() -> None:
    async def body(swarm: Swarm) -> None:
        one, two = [await swarm.node() for _ in range(2)]
        swarm.connect(one, two)
        await trio.sleep(defaults.WRITE_HOLD + 3)
        for number in range(20):  # a small feed is soon replaced by a snapshot
            one.state.set("models", f"other {number}", MODEL)
        await trio.sleep(3)
        for value in (MODEL, {**MODEL, "layers": 7}, None):
            one.state.set("models", "tiny", value)
            await trio.sleep(3)
        look = two.state.inspection
        (view,) = [
            v async for v in look.feeds() if v.name == FeedName(one.identity.peer, "models", 0)
        ]
        said = [said async for said in look.history(view)]
        tiny: list[Any] = [each.changes["tiny"] for each in said if "tiny" in each.changes]
        assert [value and value["layers"] for value in tiny] == [6, 7, None]
        assert [each.entry.seq for each in said] == [0, 1, 2, 3]
        assert len(said[0].changes) == len(await look.facts(view.name)) == 20

    run(body)


def test_an_unreadable_feed_counts_once_as_damaged() -> None:
    async def body(swarm: Swarm) -> None:
        one = await swarm.node()
        one.state.set("models", "tiny", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 3)
        sound = await one.state.inspection.verified()
        store = one.state.committer.store
        assert store is not None
        store.database.run("UPDATE entries SET sealed = zeroblob(length(sealed))")
        found = await one.state.inspection.verified()
        assert len(found.damaged) == found.feeds == sound.feeds > 0

    run(body)


def test_damage_is_found_and_fetched_again() -> None:
    async def body(swarm: Swarm) -> None:
        one, two = [await swarm.node() for _ in range(2)]
        swarm.connect(one, two)
        one.state.set("models", "tiny", MODEL)
        await trio.sleep(defaults.WRITE_HOLD + 10)
        sound = await two.state.inspection.verified()
        assert sound.feeds >= 2 and sound.entries >= sound.feeds and not sound.damaged
        store = two.state.committer.store
        assert store is not None
        _forge(store, one.identity)
        found = await two.state.inspection.verified()
        assert [name.author for name in found.damaged] == [one.identity.peer]
        assert found.feeds == sound.feeds, "the damaged one among them, once"
        await trio.sleep(10)
        assert two.names(one) == ["tiny"]
        assert not (await two.state.inspection.verified()).damaged

    run(body)


def _forge(store: Store, author: Identity) -> None:
    """Flip one bit in a signature and correct the row's sum, so that only the signature shows
    it."""
    database = store.database
    row = database.row(
        "SELECT f.id, f.epoch, f.seq FROM feeds f JOIN authors a ON a.id = f.id >> 12"
        " WHERE a.key = ? AND f.id >> 4 & 255 = (SELECT id FROM kinds WHERE name = 'models')",
        author.public_key,
    )
    assert row is not None
    feed, epoch, seq = row
    at = feed << 12 | seq
    (sealed,) = database.row("SELECT sealed FROM entries WHERE id = ?", at) or (b"",)
    forged = sealed[:60] + bytes([sealed[60] ^ 1]) + sealed[61:]
    total = entry_sum(author.public_key, feed, epoch, seq, forged)
    database.run("UPDATE entries SET sealed = ?, sum = ? WHERE id = ?", forged, total, at)


def test_a_store_that_was_never_opened_cannot_be_verified() -> None:
    async def body(swarm: Swarm) -> None:
        one = await swarm.node()
        await one.stop()
        assert one._machine.disk is not None
        one._machine.disk.read_only = True
        await one.start()
        with pytest.raises(StateError) as caught:
            await one.state.inspection.verified()
        assert caught.value.code == "no-store"

    run(body)


def test_listing_many_authors_lets_other_tasks_run() -> None:
    async def body(swarm: Swarm) -> None:
        one = await swarm.node()
        for number in range(100, 600):
            await one.state.replica.linked(identity(number).peer)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            assert [view async for view in one.state.inspection.feeds()] == []
            nursery.cancel_scope.cancel()
        assert turns > 100

    run(body)
