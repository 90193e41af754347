"""Proofs: a right one, and each way in which one can be wrong."""

from dataclasses import replace

import pytest

from shoal.transport.browser.proof import (
    DIALLER,
    LISTENER,
    Meeting,
    dialler_of,
    listener_of,
    prove,
)
from shoal.transport.identity import Identity

NODE = Identity.from_seed(b"n" * 32)
BROWSER = Identity.from_seed(b"b" * 32)
MALLORY = Identity.from_seed(b"m" * 32)
MEETING = Meeting(b"1" * 32, b"2" * 32, b"3" * 32, b"4" * 32)


def dialler_proof(meeting: Meeting = MEETING, identity: Identity = BROWSER) -> bytes:
    return prove(identity, DIALLER, meeting.transcript(identity.public_key, NODE.public_key))


def test_both_ends_learn_the_other_peer_id() -> None:
    assert dialler_of(dialler_proof(), MEETING, NODE.public_key) == BROWSER.peer
    transcript = MEETING.transcript(BROWSER.public_key, NODE.public_key)
    answer = prove(NODE, LISTENER, transcript)
    assert listener_of(answer, MEETING, BROWSER.public_key) == NODE.peer


@pytest.mark.parametrize(
    "meeting",
    [
        replace(MEETING, dialler_nonce=b"x" * 32),  # replayed: the nonces are new each time
        replace(MEETING, listener_nonce=b"x" * 32),
        replace(MEETING, dialler_fingerprint=b"x" * 32),  # a man in the middle
        replace(MEETING, listener_fingerprint=b"x" * 32),
        replace(MEETING, dialler_fingerprint=b"4" * 32, listener_fingerprint=b"3" * 32),  # swapped
        replace(MEETING, dialler_nonce=b"2" * 32, listener_nonce=b"1" * 32),
    ],
)
def test_a_proof_for_another_meeting_is_invalid(meeting: Meeting) -> None:
    assert dialler_of(dialler_proof(meeting), MEETING, NODE.public_key) is None
    # The twin: what it does prove, where that meeting took place.
    assert dialler_of(dialler_proof(meeting), meeting, NODE.public_key) == BROWSER.peer


def test_a_proof_with_another_key_is_invalid() -> None:
    transcript = MEETING.transcript(BROWSER.public_key, NODE.public_key)
    forged = bytearray(prove(MALLORY, DIALLER, transcript))
    forged[1:33] = BROWSER.public_key
    assert dialler_of(bytes(forged), MEETING, NODE.public_key) is None


def test_a_proof_for_another_node_is_invalid() -> None:
    """A node that relays a browser's proof to us: it names that node's key."""
    transcript = MEETING.transcript(BROWSER.public_key, MALLORY.public_key)
    assert dialler_of(prove(BROWSER, DIALLER, transcript), MEETING, NODE.public_key) is None


def test_neither_side_can_echo_the_other() -> None:
    assert dialler_of(prove(NODE, DIALLER, b""), MEETING, NODE.public_key) is None
    transcript = MEETING.transcript(BROWSER.public_key, NODE.public_key)
    assert dialler_of(prove(BROWSER, LISTENER, transcript), MEETING, NODE.public_key) is None
    assert listener_of(dialler_proof(), MEETING, BROWSER.public_key) is None


@pytest.mark.parametrize("size", [0, 1, 96, 98, 10_000])
def test_messages_of_a_wrong_size_are_invalid(size: int) -> None:
    message = (dialler_proof() + bytes(10_000))[:size]
    assert dialler_of(message, MEETING, NODE.public_key) is None


def test_another_version_and_a_broken_signature_are_invalid() -> None:
    right = dialler_proof()
    for at in (0, 1, 40, 96):
        wrong = right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :]
        assert dialler_of(wrong, MEETING, NODE.public_key) is None


def test_the_exporter_names_the_meeting_and_the_ends() -> None:
    keys = (BROWSER.public_key, NODE.public_key)
    names = {
        MEETING.exporter(*keys),
        replace(MEETING, listener_nonce=b"x" * 32).exporter(*keys),
        replace(MEETING, dialler_fingerprint=b"x" * 32).exporter(*keys),
        MEETING.exporter(MALLORY.public_key, NODE.public_key),
    }
    assert len(names) == 4 and {len(name) for name in names} == {32}


def test_parts_of_another_size_are_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        replace(MEETING, dialler_nonce=b"short").transcript(b"k" * 32, b"k" * 32)
