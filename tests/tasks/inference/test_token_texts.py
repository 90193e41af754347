"""Tokens with their text: none shows what a stop string cuts off."""

from shoal.tasks.inference.generation import TokenTexts


def shown(texts: TokenTexts, characters: int) -> list[str]:
    return [token.text for token in texts.release(characters)]


def test_tokens_come_with_their_text() -> None:
    texts = TokenTexts()
    texts.push("In", -1.0)
    assert shown(texts, 2) == ["In"]
    texts.push(" the", -0.5)
    assert shown(texts, 4) == [" the"] and shown(texts, 0) == []


def test_a_token_waits_for_all_of_its_text() -> None:
    texts = TokenTexts()
    texts.push("In a", -1.0)  # "a" may be the beginning of a stop string
    assert shown(texts, 3) == []
    texts.push(" word", -1.0)
    assert shown(texts, 6) == ["In a", " word"]


def test_a_token_that_a_stop_string_cuts_is_never_shown() -> None:
    texts = TokenTexts()
    texts.push("end S", -1.0)
    assert shown(texts, 4) == []
    texts.push("TOP secret", -1.0)
    assert shown(texts, 0) == []


def test_a_token_without_text_keeps_its_place() -> None:
    """Its character is complete with the next token, which has all of it."""
    texts = TokenTexts()
    texts.push("", -1.0)
    assert shown(texts, 0) == [""]
    texts.push("", -1.0)
    texts.push("é", -2.0)
    assert shown(texts, 1) == ["", "é"]
