"""Tokens with their text: none shows what a stop string cuts off."""

from shoal.tasks.inference.conversation.answer import TokenTexts
from shoal.tasks.text.process import TokenText


def shown(texts: TokenTexts, characters: int) -> list[str]:
    return [token.text for token in texts.release(characters)]


def test_tokens_come_with_their_text() -> None:
    texts = TokenTexts()
    texts.push(TokenText("In", -1.0))
    assert shown(texts, 2) == ["In"]
    texts.push(TokenText(" the", -0.5))
    assert shown(texts, 4) == [" the"] and shown(texts, 0) == []


def test_a_token_waits_for_all_of_its_text() -> None:
    texts = TokenTexts()
    texts.push(TokenText("In a", -1.0))  # "a" may be the beginning of a stop string
    assert shown(texts, 3) == []
    texts.push(TokenText(" word", -1.0))
    assert shown(texts, 6) == ["In a", " word"]


def test_a_token_that_a_stop_string_cuts_is_never_shown() -> None:
    texts = TokenTexts()
    texts.push(TokenText("end S", -1.0))
    assert shown(texts, 4) == []
    texts.push(TokenText("TOP secret", -1.0))
    assert shown(texts, 0) == []


def test_a_token_without_text_keeps_its_place() -> None:
    """Its character is complete with the next token, which has all of it."""
    texts = TokenTexts()
    texts.push(TokenText("", -1.0))
    assert shown(texts, 0) == [""]
    texts.push(TokenText("", -1.0))
    texts.push(TokenText("é", -2.0))
    assert shown(texts, 1) == ["", "é"]
