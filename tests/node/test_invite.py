"""Invitation codes: round trip, typing errors, and the book of issued codes."""

import random

import pytest

from shoal.node import defaults
from shoal.node.errors import BadInvite, NodeError
from shoal.node.invite import (
    ALPHABET,
    Invitation,
    InviteBook,
    decode,
    decode_book,
    encode,
    fingerprint,
    invitation_key,
)
from shoal.transport.handshake.hello import invitation_ident

KEY = bytes(range(32))
V4 = Invitation("192.0.2.7", 4001, fingerprint(KEY), b"0123456789")
V6 = Invitation("2001:db8::7", 65535, fingerprint(KEY), bytes(10))


@pytest.mark.parametrize("invitation", [V4, V6])
def test_round_trip(invitation: Invitation) -> None:
    code = encode(invitation)
    assert decode(code) == invitation
    assert decode(code.lower().replace("-", " ")) == invitation
    assert decode("  " + code.replace("0", "O").replace("1", "l") + "\n") == invitation


def test_codes_are_short() -> None:
    assert len(encode(V4)) <= 60
    assert set(encode(V4)) <= set(ALPHABET + "-")


def test_fingerprint() -> None:
    assert V4.expects(KEY)
    assert not V4.expects(bytes(32))


def test_every_single_typing_error_is_detected() -> None:
    """Fails without the check: a wrong letter in the secret or the address would go unnoticed."""
    code = encode(V4).replace("-", "")
    for at in range(len(code)):
        for letter in ALPHABET[:: 5 if at % 7 else 1]:
            if letter == code[at]:
                continue
            with pytest.raises(BadInvite):
                decode(code[:at] + letter + code[at + 1 :])


def test_transposed_letters_are_detected() -> None:
    code = encode(V4).replace("-", "")
    for at in range(len(code) - 1):
        swapped = code[:at] + code[at + 1] + code[at] + code[at + 2 :]
        if swapped != code:
            with pytest.raises(BadInvite):
                decode(swapped)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("", "cut short"),
        ("ABC", "cut short"),
        (encode(V4)[:-6], "typing error|cut short"),
        (encode(V4) + "00000", "typing error"),
        ("U" + encode(V4)[1:], "no code has: 'U'"),
        ("é" * 50, "no code has"),
        ("\x1b[2J", r"no code has: '\\x1b'|no code has: '\['"),
        ("0" * 100_000, "typing error"),
    ],
)
def test_bad_codes_give_a_reason(code: str, words: str) -> None:
    with pytest.raises(BadInvite, match=words) as raised:
        decode(code)
    assert raised.value.hint


def test_random_codes_never_decode_or_crash() -> None:
    source = random.Random(1)
    for _ in range(2000):
        code = "".join(source.choices(ALPHABET, k=source.randrange(120)))
        with pytest.raises(BadInvite):
            decode(code)


SECRET = b"s" * 10
IDENT = invitation_ident(invitation_key(SECRET))


class Clock:
    """A wall clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_code_admits_its_number_of_uses() -> None:
    book = InviteBook(Clock())
    assert book.add(SECRET, uses=2, lifetime=100.0) == 100.0
    for _ in range(2):
        assert book.find(IDENT) == invitation_key(SECRET)
        book.used(IDENT)
    assert book.find(IDENT) is None
    book.used(IDENT)


def test_revoked_code_grants_nothing_on_an_existing_link() -> None:
    """Fails if only the code is removed: an admitted peer could still join at any time."""
    book = InviteBook(Clock())
    book.add(SECRET, uses=1, lifetime=100.0)
    assert not book.remove(b"other123")
    book.used(IDENT)
    assert book.role(IDENT) is not None
    assert book.remove(IDENT), "a used code can be revoked too"
    assert book.role(IDENT) is None
    assert not book.remove(IDENT)


def test_a_code_expires() -> None:
    clock = Clock()
    book = InviteBook(clock)
    book.add(SECRET, uses=1, lifetime=100.0)
    clock.now = 99.0
    assert book.find(IDENT)
    clock.now = 100.0
    assert book.find(IDENT) is None


def test_the_book_on_disk_holds_no_code() -> None:
    book = InviteBook(Clock())
    book.add(SECRET, uses=3, lifetime=100.0)
    data = book.encode()
    assert SECRET not in data and SECRET.hex().encode() not in data
    again = InviteBook(Clock(), decode_book(data))
    assert again.encode() == data and again.find(IDENT)


def test_the_book_is_bounded() -> None:
    clock = Clock()
    book = InviteBook(clock)
    for number in range(defaults.INVITE_LIMIT):
        book.add(number.to_bytes(10, "big"), uses=1, lifetime=10.0)
    with pytest.raises(NodeError, match="outstanding"):
        book.add(SECRET, uses=1, lifetime=10.0)
    clock.now = 11.0
    book.add(SECRET, uses=1, lifetime=10.0)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"invites": [1]}', b"\xff", b'{"invites":0}']
)
def test_damaged_book_is_an_error(data: bytes) -> None:
    with pytest.raises(NodeError, match="invitations cannot be read"):
        decode_book(data)
