"""Pushed text, concatenated, is the whole text: for any tokens, any cut, any stop string."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from shoal.tasks.defaults import HELD_TOKENS, STOP_STRINGS
from shoal.tasks.errors import TextError
from shoal.tasks.text.detokenizer import StopFilter, TextWindow


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """What each token gives out, and last what `finish` does."""
    window = TextWindow()
    pieces = []
    for token in ids:
        known, cut = window.push([token])
        assert len(known) <= 2 * HELD_TOKENS
        pieces.append(window.advance(tokenizer.decode(known), tokenizer.decode(known[cut:])))
    return [*pieces, window.finish()]


def ids_of(tokenizer: Tokenizer, *names: str) -> list[int]:
    found = [tokenizer.token_to_id(name) for name in names]
    return [number for number in found if number is not None]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_random_tokens_of_a_byte_level_tokenizer(
    bytes_tokenizer: Tokenizer, data: st.DataObject
) -> None:
    size = bytes_tokenizer.get_vocab_size()
    ids = data.draw(st.lists(st.integers(0, size + 3), max_size=60))
    assert "".join(stream(bytes_tokenizer, ids)) == bytes_tokenizer.decode(ids)


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=30))
def test_any_text_through_byte_fallback(fallback_tokenizer: Tokenizer, text: str) -> None:
    ids = fallback_tokenizer.encode(text, add_special_tokens=False).ids
    assert "".join(stream(fallback_tokenizer, ids)) == fallback_tokenizer.decode(ids)


def test_an_emoji_cut_across_tokens_comes_out_whole(bytes_tokenizer: Tokenizer) -> None:
    ids = bytes_tokenizer.encode("a 🚀 b", add_special_tokens=False).ids
    pieces = stream(bytes_tokenizer, ids)
    assert "".join(pieces) == "a 🚀 b"
    assert not any("\ufffd" in piece for piece in pieces)
    assert any("🚀" in piece for piece in pieces)


def test_fallback_bytes_are_held_until_they_are_a_character(fallback_tokenizer: Tokenizer) -> None:
    ids = ids_of(fallback_tokenizer, "<0xF0>", "<0x9F>", "<0x9A>", "<0x80>")
    assert stream(fallback_tokenizer, ids) == ["", "", "", "🚀", ""]


def test_an_invalid_byte_spoils_nothing_before_it(fallback_tokenizer: Tokenizer) -> None:
    ids = ids_of(fallback_tokenizer, "<0xE2>", "<0x82>", "<0xAC>", "<0xFF>", "▁the")
    assert "".join(stream(fallback_tokenizer, ids)) == "€\ufffd the"


def test_the_first_space_is_stripped_and_no_other(fallback_tokenizer: Tokenizer) -> None:
    ids = ids_of(fallback_tokenizer, "<s>", "▁the", "</s>", "▁beginning", "▁")
    assert stream(fallback_tokenizer, ids) == ["", "the", "", " beginning", " ", ""]


def test_unfinished_characters_are_emitted_at_the_end(bytes_tokenizer: Tokenizer) -> None:
    first = ids_of(bytes_tokenizer, "ð")  # the byte F0
    assert "".join(stream(bytes_tokenizer, first)) == "\ufffd"
    assert "".join(stream(bytes_tokenizer, first * 100)) == "\ufffd" * 100


@settings(deadline=None)
@given(
    text=st.text("abc", max_size=40), stop=st.text("abc", min_size=1, max_size=4), data=st.data()
)
def test_any_text_ends_before_the_stop_string(text: str, stop: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    watched = StopFilter([stop])
    got = "".join(watched.push(piece) for piece in pieces) + watched.finish()
    assert got == text.split(stop)[0]
    assert watched.stopped == (stop in text)


def test_a_possible_stop_string_is_held_back() -> None:
    watched = StopFilter(["\nUser:", "###"])
    assert watched.push("yes\nUs") == "yes"
    assert watched.push("ed") == "\nUsed"
    assert watched.push(" #") == " "
    assert watched.push("##") == ""
    assert watched.stopped
    assert watched.push("more") == ""


def test_the_earliest_of_two_stop_strings_wins() -> None:
    assert StopFilter(["def", "cd"]).push("abcdef") == "ab"


@pytest.mark.parametrize("stops", [[""], ["x" * 257], ["x"] * (STOP_STRINGS + 1)])
def test_stop_strings_are_bounded(stops: list[str]) -> None:
    with pytest.raises(TextError) as caught:
        StopFilter(stops)
    assert caught.value.code == "bad-stop"
