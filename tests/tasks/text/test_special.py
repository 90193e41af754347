"""Special tokens and stop ids from files that may say anything."""

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.tasks.defaults import MAX_STOP_IDS
from shoal.tasks.text.special import special_tokens, stop_ids, token_ids, token_text

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)
FILE = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("eos_token", "eot_token", "bos_token", "eos_token_id", "additional_special_tokens"),
        ANYTHING,
    ),
)


@settings(max_examples=40, deadline=None)
@given(FILE, FILE)
def test_any_file_gives_plausible_values(one: dict[str, object], two: dict[str, object]) -> None:
    ids = stop_ids([one, two], [one, two], lambda token: 7 if token else None)
    assert len(ids) <= MAX_STOP_IDS
    assert all(0 <= number < 2**31 for number in ids)
    found = special_tokens(one, two)
    extra = found.pop("additional_special_tokens", [])
    assert all(isinstance(text, str) for text in (*found.values(), *extra))


def test_tokens_are_texts_or_maps() -> None:
    assert token_text("</s>") == token_text({"content": "</s>", "lstrip": False}) == "</s>"
    assert token_text({"content": 1}) is token_text(None) is None
    assert list(token_ids([1, True, -1, 2**31, "3"])) == [1]


def test_end_of_turn_tokens_count_only_where_listed() -> None:
    ids = {"</s>": 1, "<|im_end|>": 2}
    assert stop_ids([], [{"eos_token": "</s>"}], ids.get) == [1]
    listed = {"additional_special_tokens": ["<|im_end|>", "<|im_start|>"]}
    assert stop_ids([], [{"eos_token": "</s>"}, listed], ids.get) == [1, 2]
    assert stop_ids([], [{"eot_token": "<|im_end|>"}], ids.get) == [2]


def test_earlier_files_win() -> None:
    found = special_tokens({"bos_token": "a"}, {"bos_token": "b", "eos_token": "c"})
    assert found == {"bos_token": "a", "eos_token": "c"}
