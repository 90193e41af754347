"""Finds special tokens and stop ids in a model's files, which are untrusted JSON."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from ..defaults import MAX_STOP_IDS

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

# End-of-turn tokens of known chat formats. They stop a generation only where the model's own
# files list them as special, because elsewhere the same characters are ordinary text.
END_OF_TURN = frozenset(
    {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|endofturn|>"}
)

Special = dict[str, str | list[str]]
"""Texts of special tokens, by the names under which a chat template uses them."""

TokenId = Callable[[str], int | None]


def token_text(value: object) -> str | None:
    """Return the text of a token, which is a string or a map with `content`. Return None if
    invalid."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def special_tokens(*files: Mapping[str, object]) -> Special:
    """Return the special tokens that a chat template may use. Earlier files have priority."""
    found: Special = {}
    for file in files:
        for name in NAMED:
            text = token_text(file.get(name))
            if text is not None:
                found.setdefault(name, text)
        extra = _texts(file.get("additional_special_tokens"))
        if extra:
            found.setdefault("additional_special_tokens", extra)
    return found


def stop_ids(
    id_files: Iterable[Mapping[str, object]],
    token_files: Iterable[Mapping[str, object]],
    find: TokenId,
) -> list[int]:
    """Return the ids of the end tokens in all files, in ascending order.

    `id_files` (config, generation config) contain ids. `token_files` (tokenizer config, special
    tokens map) contain texts, which `find` converts to ids.
    """
    ids = {number for file in id_files for number in token_ids(file.get("eos_token_id"))}
    for file in token_files:
        names = [token_text(file.get("eos_token")), token_text(file.get("eot_token"))]
        names += END_OF_TURN.intersection(_texts(file.get("additional_special_tokens")))
        ids.update(number for name in names if name and (number := find(name)) is not None)
    return sorted(ids)[:MAX_STOP_IDS]


def token_ids(value: object) -> Iterator[int]:
    """Yield the valid token ids in `value`, which should be an id or a list of ids."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**31:
            yield item


def _texts(value: object) -> list[str]:
    """Return the token texts in a list, ignoring invalid items."""
    found = [token_text(item) for item in value[:1024]] if isinstance(value, list) else []
    return [text for text in found if text is not None]
