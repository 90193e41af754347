"""Names of prefixes: for the same tokens, secret, model and stages before, and for no others."""

import struct
from collections.abc import Sequence

from shoal.tasks.engine.interface import NAME_BYTES, USER_BYTES
from shoal.tasks.engine.kv.blocks import BLOCK
from shoal.tasks.inference.names import PrefixNames, names_behind

ROOT = "ab" * 32
IDS = list(range(40))


def test_there_is_a_name_for_each_full_block() -> None:
    names = PrefixNames(b"secret")
    assert [len(names.of(ROOT, IDS[:size])) for size in (0, 15, 16, 31, 32, 40)] == [
        0, 0, NAME_BYTES, NAME_BYTES, 2 * NAME_BYTES, 2 * NAME_BYTES,
    ]  # fmt: skip


def test_a_name_stands_for_everything_before_its_end() -> None:
    names = PrefixNames(b"secret")
    whole = names.of(ROOT, IDS)
    assert names.of(ROOT, IDS[:20]) == whole[:NAME_BYTES]
    other = names.of(ROOT, [*IDS[:3], 99, *IDS[4:]])
    assert other[:NAME_BYTES] != whole[:NAME_BYTES]
    assert other[NAME_BYTES:] != whole[NAME_BYTES:]


def test_names_of_a_text_that_goes_on_are_computed_from_where_it_differs() -> None:
    """They are the same as those that are computed from the beginning, also between models."""
    names, hashed = PrefixNames(b"secret"), list[int]()
    compute = names.compute

    def counted(root: str, ids: Sequence[int], first: bytes = b"") -> bytes:
        hashed.append(len(ids) // BLOCK - len(first) // NAME_BYTES)
        return compute(root, ids, first)

    names.compute = counted  # type: ignore[method-assign]
    texts = [IDS, [*IDS, *IDS], [*IDS, *IDS[:9]], [*IDS[:17], 99, *IDS], IDS[:3], IDS]
    for text in texts:
        for root in ("ab" * 32, "cd" * 32):
            assert names.of(root, text) == PrefixNames(b"secret").of(root, text)
    assert hashed[::2] == hashed[1::2] == [2, 3, 0, 2, 0, 2]


def test_other_secrets_and_models_give_other_names() -> None:
    mine = PrefixNames(b"secret").of(ROOT, IDS)
    assert PrefixNames(b"other").of(ROOT, IDS) != mine
    assert PrefixNames(b"secret").of("cd" * 32, IDS) != mine


def test_what_another_stage_computed_is_not_found_behind_this_one() -> None:
    """A stage that lies spoils what later stages cache, but for its own chains only."""
    names = PrefixNames(b"secret").of(ROOT, IDS)
    assert names_behind(names, ()) == names
    behind = names_behind(names, ("liar",))
    assert len(behind) == len(names)
    assert names_behind(names, ("honest",)) not in (behind, names)
    assert names_behind(names, ("liar", "honest")) != names_behind(names, ("honest", "liar"))
    assert names_behind(names[:NAME_BYTES], ("liar",)) == behind[:NAME_BYTES]


def test_a_tag_of_a_user_is_the_same_each_time_and_says_nothing_else() -> None:
    names = PrefixNames(b"secret")
    tag = names.user_tag("anna@example.org")
    assert len(tag) == USER_BYTES and tag == names.user_tag("anna@example.org")
    assert tag not in (names.user_tag("anna"), PrefixNames(b"other").user_tag("anna@example.org"))
    assert names.user_tag("") == b""
    name = names.of(ROOT, range(16))
    assert names.user_tag(ROOT + struct.pack("<16I", *range(16)).decode()) != name
