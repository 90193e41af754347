"""Checks on names that this node creates, and how it renders those of peers."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.transport import naming

HONEST = [
    "Llama-3.2-1B", "Qwen2.5-0.5B-Instruct", "gpt2", "tiny", "Mistral-7B-Instruct-v0.3",
    "Phi-3.5-mini-instruct", "SmolLM2-135M", "DeepSeek-R1-Distill-Qwen-1.5B", "gemma-2-2b-it",
    "bloom-560m", "opt_125m", "T5", "модель-7Б", "Сайга", "ελληνικό-μοντέλο", "通义千问-7B",
    "日本語モデル", "ひらがな漢字カタカナ-GPT", "ラーメン", "한국어-모델", "통일漢字", "दीपक",
    "عربي-٧", "עברית", "ไทย", "Größe", "naïve-café", "Đắk-Lắk", "ქართული", "தமிழ்",
]  # fmt: skip
ALIKE = {
    "t\u0456ny": "tiny", "\u0430\u0440\u0440l\u0435": "apple", "tiny\u200b": "tiny",
    "ti\ufe0fny": "tiny", "Llam\u03b1-3": "Llama-3", "\uff54iny": "tiny", "t\u0131ny": "tiny",
    "Llama\u20133.2": "Llama-3.2", "\U0001d42d\U0001d422ny": "tiny", "t\U000e0069iny": "tiny",
    "\u0441\u043e\u0441\u043e": "coco", "ti\u202eny": "tiny",
    "ti\u3164ny": "tiny", "\u01c0lama": "llama", "deep\u1d04": "deepc",
    "\ua4d4\ua4f2\ua4e0\ua4ec": "TINY", "gpt\u30fcoss": "gpt-oss", "gpt\u4e00oss": "gpt-oss",
    "gpt\u1173oss": "gpt-oss", "ti\u0307ny": "tiny", "tiny\u0332": "tiny", "\u019ainy": "tiny",
    "\u029f\u029f\u1d00\u1d0d\u1d00": "llama", "\uabae\uabae\uab7a": "lla",
    "\u2ca6\u2c92\u2c9a\u2ca8": "TINY",
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_names_are_accepted_and_shown_unchanged(name: str) -> None:
    name = naming.normal(name)
    assert naming.problem(name) == "" == naming.doubt(name)
    assert naming.shown(name) == name


@pytest.mark.parametrize("name", ALIKE)
def test_a_name_that_looks_like_another_is_refused_and_says_so(name: str) -> None:
    assert naming.problem(name)
    shown = naming.shown(name)
    assert shown.endswith(f' (looks like "{ALIKE[name]}")') and shown.isascii()


def test_the_example_of_the_specification() -> None:
    assert naming.shown("t\u0456ny") == r't\u0456ny (looks like "tiny")'


@pytest.mark.parametrize(
    ("name", "scripts"),
    [
        ("Llama-модель", "Cyrillic and Latin"),
        ("моδель", "Cyrillic and Greek"),
        ("ひ한", "Hangul and Hiragana"),
    ],
)
def test_unusual_mixes_of_scripts_are_refused(name: str, scripts: str) -> None:
    assert naming.doubt(name) == naming.problem(name) == f"mixes {scripts}"
    assert naming.shown(name).isascii()


@pytest.mark.parametrize(
    "name",
    [
        "", "-x", ".x", "_x", "...", "a/b", "a b", "a\\b", "a:b", "a@b", "x" * 65, "語" * 43,
        "é" * 65, "a\n", "a\x7f", "a\x9b", "a\u2028", "e\u0301", "\u0301e", "🐟", "a\u00a0b", "ﬁne",
        "①", "x²", "caf\u0065\u0301", "\ud800", "a\u0600", "می\u200cخواهم", "a\ufffd", "a\ue000",
    ],
)  # fmt: skip
def test_other_names_are_refused(name: str) -> None:
    assert naming.problem(name)


def test_typed_names_are_normalised() -> None:
    typed = unicodedata.normalize("NFD", "café-модельй")
    assert naming.problem(typed) and typed != naming.normal(typed)
    assert naming.problem(naming.normal(unicodedata.normalize("NFD", "café"))) == ""


@given(st.text(max_size=80))
def test_shown_names_contain_no_control_characters(name: str) -> None:
    for shown in (naming.shown(name), naming.escaped(name), naming.spelled(name)):
        assert not any(naming.is_hidden(each) for each in shown)
        shown.encode()


@given(st.text(st.characters(codec="utf-8"), max_size=70))
def test_accepted_names_are_shown_unchanged(name: str) -> None:
    """They are also normalised, and within the bounds of other nodes."""
    if naming.problem(name) == "":
        assert naming.shown(name) == name == naming.normal(name)
        assert 0 < len(name.encode()) <= naming.MOST_BYTES


def test_stacked_marks_are_escaped() -> None:
    assert naming.escaped("e\u0301\u0302") == "e\u0301\u0302"
    assert naming.escaped("e" + "\u0301" * 6) == "e" + "\u0301" * 4 + r"\u0301\u0301"
    assert naming.escaped("a\n\u200db", keep="\n\u200d") == "a\n\u200db"
