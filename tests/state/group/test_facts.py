"""Valid facts of a `group` feed are read, and anything else is ignored."""

from typing import Any

import pytest

from shoal.state import defaults
from shoal.state.feeds.entry import Head
from shoal.state.group.facts import (
    ABOUT,
    Charter,
    GroupFacts,
    Revocation,
    Role,
    Sealed,
    about_fact,
    grant_fact,
    grant_key,
    key_fact,
    key_key,
    revocation_fact,
    revocation_key,
)
from tests.state.group.people import Person, said

SOMEBODY = Person(5)
BOX = b"b" * 32
END = Head(9, 2, b"h" * 32)
SEALED = Sealed(b"m" * 8, b"e" * 32, b"boxes")


def test_written_facts_are_read() -> None:
    found = said(
        {
            ABOUT: about_fact("ours", b"n" * 16, BOX),
            grant_key(SOMEBODY.peer): grant_fact(Role.CLIENT, BOX, 12),
            revocation_key(SOMEBODY.peer): revocation_fact({("shards", 3): END}, 13),
            key_key(2, 0): key_fact(SEALED),
        }
    )
    assert found.about is not None and found.about.name == "ours"
    grant = found.grants[SOMEBODY.peer]
    assert (grant.role, grant.box, grant.since) == (Role.CLIENT, BOX, 12)
    assert found.revoked == {SOMEBODY.peer: Revocation({("shards", 3): END}, 13)}
    assert found.keys == {(2, 0): SEALED}
    assert found.bad == 0


def test_a_deleted_fact_is_removed() -> None:
    found = said({grant_key(SOMEBODY.peer): grant_fact(Role.OWNER, BOX, 0)})
    found.change(grant_key(SOMEBODY.peer), None)
    assert found == GroupFacts()


GRANT, REVOKED, KEY = grant_key(SOMEBODY.peer), revocation_key(SOMEBODY.peer), key_key(1, 0)
HEAD = ["jobs", 0, 1, 0, b"h" * 32]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (ABOUT, {"nonce": b"short", "box": BOX}),
        (ABOUT, {"nonce": b"n" * 16, "box": BOX, "name": "x" * 200}),
        (GRANT, {"role": "king", "box": BOX}),
        (GRANT, {"role": ["owner"], "box": BOX}),
        (GRANT, {"role": "owner", "box": b"b" * 31}),
        (GRANT, {"role": "owner"}),
        ("member/somebody", grant_fact(Role.OWNER, BOX, 0)),
        (REVOKED, {"heads": "all"}),
        (REVOKED, {"heads": [HEAD[:4]]}),
        (REVOKED, {"heads": [["jobs", 0, 0, 0, b"h" * 32]]}),
        (REVOKED, {"heads": [["jobs", 0, 1, 0, b"h"]]}),
        (REVOKED, {"heads": [[["jobs"], 0, 1, 0, b"h" * 32]]}),
        (REVOKED, {"heads": [HEAD] * 60}),
        (KEY, {"mark": b"m", "from": b"e" * 32, "boxes": b""}),
        (KEY, {"mark": b"m" * 8, "from": b"e" * 32}),
        (KEY, {"mark": b"m" * 8, "from": b"e" * 32, "boxes": b"x" * (defaults.FACT_BYTES + 1)}),
    ],
)
def test_malformed_facts_count_as_missing(key: str, value: dict[str, Any]) -> None:
    found = said({key: value})
    assert found.bad == 1
    found.bad = 0
    assert found == GroupFacts()


@pytest.mark.parametrize(
    "key", ["key/0/0", "key/01/0", "key/1", "key/1/0/0", "key/9999999999/0", "key/1/256", "key/x/0"]
)
def test_key_numbers_are_bounded_and_canonical(key: str) -> None:
    assert said({key: key_fact(SEALED)}) == GroupFacts()


def test_a_malformed_fact_replaces_the_earlier_one() -> None:
    found = said({GRANT: grant_fact(Role.OWNER, BOX, 0)})
    found.change(GRANT, b"\xc1")
    assert (found.grants, found.bad) == ({}, 1)


def test_feeds_of_later_kinds_are_skipped() -> None:
    found = said({REVOKED: {"heads": [["dreams", 0, 1, 0, b"h" * 32], HEAD], "since": 1}})
    assert found.revoked[SOMEBODY.peer].ends == {("jobs", 0): Head(1, 0, b"h" * 32)}


def test_a_charters_id_depends_on_founder_and_nonce() -> None:
    idents = {
        Charter(SOMEBODY.peer, b"n" * 16).ident,
        Charter(Person(6).peer, b"n" * 16).ident,
        Charter(SOMEBODY.peer, b"m" * 16).ident,
    }
    assert len(idents) == 3 and all(len(ident) == 16 for ident in idents)
