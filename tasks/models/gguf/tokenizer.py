"""From the vocabulary in a GGUF file to `tokenizer.json` and its settings.

Kinds: `gpt2` (byte-level BPE) and `llama` (BPE of SentencePiece, with scores). The texts are
untrusted. The result is loaded once here, so that a file that the library `tokenizers` refuses is
not added.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from tokenizers import Tokenizer

from ....dht.errors import ModelError
from .metadata import Metadata

TOKEN_LIMIT: Final = 1024  # bytes of a token
_NORMAL, _UNKNOWN, _CONTROL, _OWN, _UNUSED, _BYTE = range(1, 7)
_SPACE: Final = "\u2581"
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS: Final[Mapping[str, str]] = {  # how the text is cut before BPE, by `tokenizer.ggml.pre`
    "llama-bpe": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",
    "dbrx": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",  # Phi 4 too
    "qwen2": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}",
}
_BYTE_LEVEL: Final = ("default", "gpt-2")  # cut by the pattern of GPT-2
_DIGITS: Final = ("smollm",)  # the same, and each digit alone

Json = dict[str, object]


def text_files(meta: Metadata, vocabulary: int) -> dict[str, bytes]:
    """Return tokenizer.json, tokenizer_config.json, generation_config.json and the chat template,
    by file name. `vocabulary` is the number of rows of the embedding.

    Raises ModelError: `bad-tokenizer`, `unsupported-tokenizer`.
    """
    tokens = _tokens(meta, vocabulary)
    kinds = [int(kind) for kind in meta.numbers("tokenizer.ggml.token_type")]
    kinds = kinds if len(kinds) == len(tokens) else [_NORMAL] * len(tokens)
    kind = meta.text("tokenizer.ggml.model")
    if kind == "gpt2":
        made = _byte_level(meta, tokens)
    elif kind == "llama":
        made = _sentence_piece(meta, tokens, kinds)
    else:
        _unsupported(f"tokenizers of the kind {ascii(kind)[:40]}")
    special = _special(meta, tokens)
    made |= {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokens, kinds, special.values()),
        "post_processor": _post_processor(meta, kind, special, tokens),
    }
    data = json.dumps(made).encode()
    _check(data, len(tokens))
    files = {"tokenizer.json": data, "tokenizer_config.json": json.dumps(special).encode()}
    if ends := _ends(meta, tokens):
        files["generation_config.json"] = json.dumps({"eos_token_id": ends}).encode()
    if template := meta.text("tokenizer.chat_template", ""):
        files["chat_template.jinja"] = template.encode()
    return files


def _tokens(meta: Metadata, vocabulary: int) -> list[str]:
    """Return the texts of all tokens. Raises ModelError unless there is one for each row."""
    tokens = meta.texts("tokenizer.ggml.tokens")
    if len(tokens) != vocabulary:
        _bad(f"it has {len(tokens)} tokens, and the embedding has {vocabulary} rows")
    if len(set(tokens)) != len(tokens):
        _bad("two tokens have the same text")
    if max(map(len, tokens), default=0) > TOKEN_LIMIT:
        _bad(f"a token has more than {TOKEN_LIMIT} characters")
    return tokens


def _byte_level(meta: Metadata, tokens: Sequence[str]) -> Json:
    """Return the parts of a byte-level BPE."""
    pre = meta.text("tokenizer.ggml.pre", "default")
    cut: list[Json] = [
        {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": pre not in _SPLITS,
        }
    ]
    if pre in _SPLITS:
        pattern = {"Regex": _SPLITS[pre]}
        cut.insert(
            0, {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        )
    elif pre in _DIGITS:
        cut.insert(0, {"type": "Digits", "individual_digits": True})
    elif pre not in _BYTE_LEVEL:
        _unsupported(f"tokenizers that cut texts by {ascii(pre)[:40]}")
    known = {token: number for number, token in enumerate(tokens)}
    return {
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cut},
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "vocab": known,
            "merges": _merges(meta, known),
            "ignore_merges": pre == "llama-bpe",
            "byte_fallback": False,
            "fuse_unk": False,
        },
    }


def _merges(meta: Metadata, known: Mapping[str, int]) -> list[list[str]]:
    """Return the merges as pairs. Raises ModelError if one names unknown tokens."""
    pairs = []
    for merge in meta.texts("tokenizer.ggml.merges"):
        first, _, second = merge.partition(" ")
        if not {first, second, first + second} <= known.keys():
            _bad(f"the merge {ascii(merge)[:80]} has a token that is not in the vocabulary")
        pairs.append([first, second])
    if not pairs:
        _bad("it has no merges")
    return pairs


def _sentence_piece(meta: Metadata, tokens: Sequence[str], kinds: Sequence[int]) -> Json:
    """Return the parts of a BPE of SentencePiece, whose merges follow from the scores."""
    scores = meta.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        _bad(f"it has {len(scores)} scores for {len(tokens)} tokens")
    unknown = int(meta.integer("tokenizer.ggml.unknown_token_id", 1 << 22, 0))
    if unknown >= len(tokens):
        _bad("its unknown token is not in the vocabulary")
    known = {token: number for number, token in enumerate(tokens)}
    first: list[Json] = []
    if meta.flag("tokenizer.ggml.add_space_prefix", True):
        first.append({"type": "Prepend", "prepend": _SPACE})
    space = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if first:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*first, space]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "vocab": known,
            "merges": _scored_merges(tokens, kinds, scores, known),
            "unk_token": tokens[unknown],
            "byte_fallback": all(f"<0x{byte:02X}>" in known for byte in range(256)),
            "fuse_unk": True,
            "ignore_merges": False,
        },
    }


def _scored_merges(
    tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float], known: Mapping[str, int]
) -> list[list[str]]:
    """Return all pairs of tokens that make a token, those of the highest score first.

    SentencePiece merges the pair whose result has the highest score, which is what these ranks do.
    """
    normal = {token for token, kind in zip(tokens, kinds, strict=True) if kind == _NORMAL}
    found: list[tuple[float, int, int, list[str]]] = []
    for token, score in zip(tokens, scores, strict=True):
        if token not in normal:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in normal and right in normal:
                found.append((-score, known[left], known[right], [left, right]))
    return [pair for _, _, _, pair in sorted(found, key=lambda each: each[:3])]


def _special(meta: Metadata, tokens: Sequence[str]) -> dict[str, str]:
    """Return the special tokens, by their names in tokenizer_config.json."""
    found = {}
    for name, key in (
        ("bos_token", "bos"),
        ("eos_token", "eos"),
        ("unk_token", "unknown"),
        ("pad_token", "padding"),
    ):
        number = meta.integer(f"tokenizer.ggml.{key}_token_id", 1 << 32, 1 << 32)
        if number < len(tokens):
            if not tokens[number]:
                _bad(f"its {name} is an empty text")
            found[name] = tokens[number]
        elif number != 1 << 32 and number != (1 << 32) - 1:
            _bad(f"its {name} is not in the vocabulary")
    return found


def _ends(meta: Metadata, tokens: Sequence[str]) -> list[int]:
    """Return the ids of the tokens that end an answer."""
    keys = ("eos", "eot", "eom")
    numbers = [meta.integer(f"tokenizer.ggml.{key}_token_id", 1 << 32, 1 << 32) for key in keys]
    return sorted({number for number in numbers if number < len(tokens)})


def _added(tokens: Sequence[str], kinds: Sequence[int], special: object) -> list[Json]:
    """Return the tokens that are found in a text before it is cut."""
    names = set(special)  # type: ignore[call-overload]
    return [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind in (_CONTROL, _UNKNOWN) or token in names,
        }
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if (kind in (_CONTROL, _OWN, _UNKNOWN) or token in names) and token
    ]


def _post_processor(
    meta: Metadata, kind: str, special: Mapping[str, str], tokens: Sequence[str]
) -> Json | None:
    """Return what puts the first token in front of a text, and the last one behind it."""
    begins = meta.flag("tokenizer.ggml.add_bos_token", kind == "llama") and "bos_token" in special
    ends = meta.flag("tokenizer.ggml.add_eos_token", False) and "eos_token" in special
    if not begins and not ends:
        return (
            None
            if kind == "llama"
            else {
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": False,
                "use_regex": True,
            }
        )
    around = [special["bos_token"]] if begins else [], [special["eos_token"]] if ends else []

    def item(token: str) -> Json:
        return {"SpecialToken": {"id": token, "type_id": 0}}

    single = [*map(item, around[0]), {"Sequence": {"id": "A", "type_id": 0}}, *map(item, around[1])]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    used = {
        token: {"id": token, "ids": [tokens.index(token)], "tokens": [token]}
        for token in (*around[0], *around[1])
    }
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": used}


def _check(data: bytes, count: int) -> None:
    """Raise ModelError if the tokenizer has other tokens than expected.

    If the library `tokenizers` refuses it, its exception ends the conversion.
    """
    size = Tokenizer.from_str(data.decode()).get_vocab_size()
    if size != count:
        _bad(f"it has {size} different tokens, and {count} were expected")


def _bad(why: str) -> NoReturn:
    raise ModelError(
        "bad-tokenizer",
        f"the tokenizer in the file does not fit its model: {why}",
        hint="download the file again, or add the model's Hugging Face folder",
    )


def _unsupported(what: str) -> NoReturn:
    raise ModelError(
        "unsupported-tokenizer",
        f"{what} are not supported",
        hint="add the model's Hugging Face folder instead",
    )
