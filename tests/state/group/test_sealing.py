"""Each member opens the box that was sealed for it, and no other one."""

import pytest
from msgspec.structs import replace

from shoal.state import defaults
from shoal.state.group.facts import Sealed
from shoal.state.group.sealing import box_of, boxed, mark_of, open_secret, seal_secret
from tests.state.group.people import Person

GROUP, SECRET = b"g" * 16, b"s" * 32
ONE, TWO, THREE = Person(1), Person(2), Person(3)


def seal(*people: Person, number: int = 4, group: bytes = GROUP) -> list[Sealed]:
    members = {person.peer: person.box for person in people}
    return list(seal_secret(group, number, SECRET, members, [b"e" * 32] * -(-len(people) // 256)))


def test_only_members_open_a_sealed_secret() -> None:
    parts = seal(ONE, TWO)
    assert open_secret(ONE.identity, GROUP, 4, parts) == SECRET
    assert open_secret(TWO.identity, GROUP, 4, parts) == SECRET
    assert open_secret(THREE.identity, GROUP, 4, parts) is None
    assert boxed(GROUP, 4, [ONE.peer, THREE.peer], parts) == {ONE.peer}
    assert parts[0].mark == mark_of(SECRET)


@pytest.mark.parametrize("change", ["group", "number"])
def test_a_sealed_secret_opens_in_no_other_context(change: str) -> None:
    parts = seal(ONE)
    group, number = (b"o" * 16, 4) if change == "group" else (GROUP, 5)
    assert open_secret(ONE.identity, group, number, parts) is None


def test_a_box_under_another_s_tag_does_not_open() -> None:
    (part,) = seal(ONE, TWO)
    first, second = part.boxes[:56], part.boxes[56:]
    swapped = replace(part, boxes=first[:8] + second[8:] + second[:8] + first[8:])
    assert open_secret(ONE.identity, GROUP, 4, [swapped]) is None


@pytest.mark.parametrize("boxes", [b"", b"x" * 55, b"x" * 5000])
def test_bad_boxes_open_nothing(boxes: bytes) -> None:
    (part,) = seal(ONE)
    assert open_secret(ONE.identity, GROUP, 4, [replace(part, boxes=boxes)]) is None
    bent = part.boxes[:-1] + bytes([part.boxes[-1] ^ 1])
    assert open_secret(ONE.identity, GROUP, 4, [replace(part, boxes=bent)]) is None
    assert open_secret(ONE.identity, GROUP, 4, [replace(part, ephemeral=bytes(32))]) is None


def test_a_secret_with_another_mark_does_not_count() -> None:
    (part,) = seal(ONE)
    assert open_secret(ONE.identity, GROUP, 4, [replace(part, mark=b"m" * 8)]) is None


def test_an_invalid_box_key_affects_no_other_member() -> None:
    """Fails if a point of low order stops the rotation."""
    members = {ONE.peer: bytes(32), TWO.peer: TWO.box}
    parts = list(seal_secret(GROUP, 4, SECRET, members, [b"e" * 32]))
    assert open_secret(TWO.identity, GROUP, 4, parts) == SECRET
    assert boxed(GROUP, 4, members, parts) == {TWO.peer}


def test_parts_fit_into_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    assert defaults.KEY_PART_MEMBERS * 56 + 200 < defaults.FACT_BYTES
    monkeypatch.setattr(defaults, "KEY_PART_MEMBERS", 2)
    members = {person.peer: person.box for person in (ONE, TWO, THREE)}
    parts = list(seal_secret(GROUP, 4, SECRET, members, [b"e" * 32, b"f" * 32]))
    assert len(parts) == 2
    assert open_secret(ONE.identity, GROUP, 4, parts) == SECRET
    assert len({part.ephemeral for part in parts}) == 2


def test_a_box_is_derived_from_the_identity() -> None:
    assert box_of(ONE.identity) == ONE.box != TWO.box
    assert ONE.box != ONE.identity.public_key
