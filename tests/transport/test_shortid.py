"""Ids cut for people, and what the beginning of one means."""

from collections.abc import Sequence

import pytest

from shoal.transport.identity import Identity
from shoal.transport.shortid import COMMON, BadId, is_id, meant, short, shortened

PEERS = [Identity.from_seed(bytes([number]) * 32).peer for number in range(40)]
ROOTS = ["ab" * 32, "ab" * 31 + "cd", "12" * 32]


def code(asked: str, known: Sequence[str], kind: str = "peer") -> tuple[str, str]:
    with pytest.raises(BadId) as raised:
        meant(asked, known, kind, hint="look")
    return raised.value.code, raised.value.message


def test_a_shown_id_is_accepted() -> None:
    for known in (list(map(str, PEERS)), ROOTS):
        for ident in known:
            assert meant(short(ident, known), known, "peer", hint="") == ident
            assert meant(ident, known, "peer", hint="") == ident
            assert meant(f"{short(ident, known)}…", known, "peer", hint="") == ident
    assert meant("12" * 4, ROOTS, "root", hint="") == "12" * 32
    assert meant("ABABABAB" * 7 + "ababABCD", ROOTS, "root", hint="") == ROOTS[1]


def test_an_id_is_shown_as_long_as_it_has_to_be() -> None:
    assert short(PEERS[0]) == PEERS[0][:14] and short(ROOTS[2], ROOTS) == "12" * 6
    assert short(ROOTS[0], ROOTS) == "ab" * 31 + "a"
    assert short("x") == "x"


def test_a_beginning_that_is_too_short() -> None:
    for asked in ("", "12D3", COMMON, PEERS[0][:11]):
        assert code(asked, PEERS)[0] == "short-peer"
    assert f"at least 4 characters after `{COMMON}`" in code(PEERS[0][:11], PEERS)[1]
    for asked in ("", "12", "abc"):
        assert code(asked, ROOTS, "job")[1].endswith("expected at least 4 characters")


def test_one_that_is_unknown_or_means_several() -> None:
    assert code(f"{COMMON}zzzz", PEERS)[0] == "unknown-peer"
    assert code(PEERS[0], PEERS[1:]) == ("unknown-peer", f"no peer '{PEERS[0]}' is known")
    assert code("\x1b[2J" * 50, PEERS)[0] == "unknown-peer"
    found, message = code("abab", ROOTS, "job")
    assert found == "ambiguous-job"
    assert "begins the ids of 2 jobs" in message and f"`{ROOTS[0][:63]}`" in message


def test_ids_are_recognized() -> None:
    assert is_id(PEERS[0]) and is_id(ROOTS[0])
    assert not is_id(PEERS[0][:51]) and not is_id("tiny") and not is_id("AB" * 32)


def test_whole_ids_in_a_sentence_are_cut_but_not_in_an_address() -> None:
    one, other = PEERS[0], PEERS[1]
    address = f"/ip4/192.0.2.7/tcp/1/p2p/{one}"
    assert shortened(f"stage 1 ({one}, layers 0:2) and {other}") == (
        f"stage 1 ({short(one)}, layers 0:2) and {short(other)}"
    )
    assert shortened(f"dial {address}") == f"dial {address}"
    assert shortened(f"x{one} {one[:51]}") == f"x{one} {one[:51]}"
