"""Tokenizer, special tokens and chat template of one model, as used in the text child."""

import json
from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer

from ..defaults import TEXT_BYTES
from ..errors import TextError
from .frames import TextFiles, TextInfo
from .special import Special, special_tokens, stop_ids
from .template import ChatTemplate


class Tokens:
    """Converter of text to token ids and back, for one model.

    Must be used only in the sandbox, because the files are untrusted.
    """

    def __init__(self, files: TextFiles) -> None:
        self._tokenizer = _tokenizer(files.tokenizer)
        config = _json_map("tokenizer_config", files.tokenizer_config)
        special_map = _json_map("special_tokens", files.special_tokens)
        generation = _json_map("generation_config", files.generation_config)
        find = self._tokenizer.token_to_id
        special = special_tokens(config, special_map)
        self._name_by_id(special, "bos_token", files.bos_token_id)
        self._name_by_id(special, "eos_token", files.eos_token_id)
        model = {"eos_token_id": list(files.eos_token_id)}
        source = _template_source(files.chat_template, config.get("chat_template"))
        self.info = TextInfo(
            vocabulary=self._tokenizer.get_vocab_size(),
            bos=self._id_of(special.get("bos_token")),
            eos=self._id_of(special.get("eos_token")),
            stop_ids=tuple(stop_ids((model, generation), (config, special_map), find)),
            chat=source is not None,
        )
        self._source, self._special = source, special
        self._template: ChatTemplate | None = None

    def _id_of(self, token: str | list[str] | None) -> int | None:
        found: int | None = None
        if isinstance(token, str):
            found = self._tokenizer.token_to_id(token)
        return found

    def _name_by_id(self, special: Special, name: str, ids: Sequence[int]) -> None:
        """If a special token is unnamed, set it to the first of `ids` that the tokenizer knows."""
        texts = (self._tokenizer.id_to_token(number) for number in ids)
        if (text := next((text for text in texts if text is not None), None)) is not None:
            special.setdefault(name, text)

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """Encode text. `add_special` adds the special tokens of the tokenizer's post-processor."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special).ids
        return ids

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool, now: float
    ) -> list[int]:
        """Encode a conversation with the chat template, which writes special tokens itself.

        Raises TextError `no-template` if the model has none.
        """
        if self._source is None:
            raise TextError("no-template", "the model has no chat template")
        # Compiled late, so that a bad template does not prevent `encode`.
        if self._template is None:
            self._template = ChatTemplate(self._source, self._special)
        text = self._template.render(messages, add_generation_prompt=add_generation_prompt, now=now)
        return self.encode(text, add_special=False)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode text without special tokens. Ids outside the vocabulary are ignored."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text


def _tokenizer(data: bytes) -> Tokenizer:
    """Load tokenizer.json. Raises TextError `bad-tokenizer` if it is invalid."""
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except ValueError as error:
        raise TextError(
            "bad-tokenizer",
            f"tokenizer.json cannot be read: {error}",
            hint="add the model again with the tokenizer.json it was published with",
        ) from None
    tokenizer.no_truncation()  # the file may enable truncation and padding, meant for training
    tokenizer.no_padding()
    return tokenizer


def _json_map(name: str, data: bytes | None) -> dict[str, object]:
    """Parse a JSON object. Raises TextError `bad-tokenizer` if it is invalid."""
    if not data:
        return {}
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TextError("bad-tokenizer", f"the model's {name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise TextError("bad-tokenizer", f"the model's {name} is not a JSON object")
    return value


def _template_source(file: bytes | None, configured: object) -> str | None:
    """Return the source of the chat template, or None if there is none.

    `chat_template.jinja` has priority over the tokenizer config, which has a text or a list of
    named templates.
    """
    if file:
        return file.decode("utf-8", "replace")
    if isinstance(configured, list):
        named = {
            item["name"]: item.get("template")
            for item in configured
            if isinstance(item, dict) and isinstance(item.get("name"), str)
        }
        configured = named.get("default")
    return configured[:TEXT_BYTES] if isinstance(configured, str) else None
