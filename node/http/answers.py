"""Responses of the API: answers as JSON documents and as server-sent events. No I/O."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...tasks.inference.generation import Summary
from ...tasks.text.process import LikelyText, TokenText
from .requests import Asked

Object = dict[str, object]
DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Heading:
    """The fields with which every document of one answer begins. `created` is in seconds since
    1970. The first event of a stream has the `seed` too: with it, another gateway gives the same
    answer if this one is lost."""

    ident: str
    created: int
    model: str
    seed: int


class AnswerForm(ABC):
    """Writes one answer as JSON, in the form of a chat or in that of a completion."""

    whole_kind: str
    part_kind: str
    ident: str
    """Beginning of the ids of such answers."""

    def __init__(self, heading: Heading, asked: Asked) -> None:
        self._heading = heading
        self._asked = asked
        self._begun = False  # whether the stream's first event was made
        self._text_offset = 0  # characters of the tokens so far

    # Not streamed.

    def whole(self, summary: Summary, tokens: Sequence[TokenText]) -> bytes:
        """Return the document of a complete answer."""
        choice = self._whole_choice(summary.text)
        choice["finish_reason"] = _finish_reason(summary)
        choice["logprobs"] = self._logprobs(tokens) if self._asked.logprobs else None
        document = self._document(self.whole_kind, [choice])
        return json.dumps(document | {"usage": _usage(summary)}).encode()

    # Streamed.

    def opening(self) -> bytes:
        """Return the events with which a streamed answer begins."""
        return b""

    def piece(self, text: str, tokens: Sequence[TokenText]) -> bytes:
        """Return the event for a piece of the text, and the tokens that end in it."""
        logprobs = self._logprobs(tokens) if self._asked.logprobs and tokens else None
        return self._event([self._part_choice(text) | {"logprobs": logprobs}])

    def closing(self, summary: Summary) -> bytes:
        """Return the events with which a streamed answer ends."""
        choice = self._part_choice("") | {"logprobs": None}
        events = self._event([choice], finish_reason=_finish_reason(summary))
        if self._asked.include_usage:
            events += self._event([], usage=_usage(summary))
        return events + DONE

    def _event(
        self,
        choices: list[Object],
        *,
        finish_reason: str | None = None,
        usage: Object | None = None,
    ) -> bytes:
        shown = [choice | {"finish_reason": finish_reason} for choice in choices]
        document = self._document(self.part_kind, shown)
        if not self._begun:
            self._begun = True
            document["seed"] = self._heading.seed
        if self._asked.include_usage:
            document["usage"] = usage
        return event_of(json.dumps(document).encode())

    def _document(self, kind: str, choices: list[Object]) -> Object:
        heading = self._heading
        return {
            "id": heading.ident,
            "object": kind,
            "created": heading.created,
            "model": heading.model,
            "choices": choices,
        }

    @abstractmethod
    def _whole_choice(self, text: str) -> Object: ...

    @abstractmethod
    def _part_choice(self, text: str) -> Object: ...

    @abstractmethod
    def _logprobs(self, tokens: Sequence[TokenText]) -> Object: ...


class ChatAnswer(AnswerForm):
    """Form of answers to `POST /v1/chat/completions`."""

    whole_kind = "chat.completion"
    part_kind = "chat.completion.chunk"
    ident = "chatcmpl-"

    def opening(self) -> bytes:
        return self._event([{"index": 0, "delta": {"role": "assistant", "content": ""}}])

    def _whole_choice(self, text: str) -> Object:
        return {"index": 0, "message": {"role": "assistant", "content": text, "refusal": None}}

    def _part_choice(self, text: str) -> Object:
        return {"index": 0, "delta": {"content": text} if text else {}}

    def _logprobs(self, tokens: Sequence[TokenText]) -> Object:
        content = [
            _likely(token) | {"top_logprobs": [_likely(each) for each in token.top]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}


class CompletionAnswer(AnswerForm):
    """Form of answers to `POST /v1/completions`."""

    whole_kind = "text_completion"
    part_kind = "text_completion"
    ident = "cmpl-"

    def _whole_choice(self, text: str) -> Object:
        return {"index": 0, "text": text}

    def _part_choice(self, text: str) -> Object:
        return {"index": 0, "text": text}

    def _logprobs(self, tokens: Sequence[TokenText]) -> Object:
        offsets = []
        for token in tokens:
            offsets.append(self._text_offset)
            self._text_offset += len(token.text)
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [_by_text(token) for token in tokens] if self._asked.top else None,
            "text_offset": offsets,
        }


def _likely(token: TokenText | LikelyText) -> Object:
    """Return a token as chats show it."""
    return {
        "token": token.text,
        "logprob": token.logprob,
        "bytes": list(token.text.encode(errors="replace")),
    }


def _by_text(token: TokenText) -> dict[str, float]:
    """Return the most likely tokens as completions show them. Of several with the same text, the
    likeliest counts."""
    found: dict[str, float] = {}
    for each in token.top:
        found.setdefault(each.text, each.logprob)
    return found


def model_of(name: str, owners: Mapping[str, str]) -> Object:
    """Return the description of a model. When it was made is unknown, so `created` is 0.

    `owners` names the member behind each model without a root.
    """
    owner = owners.get(name, "shoal")
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}


def models_of(names: Iterable[str], owners: Mapping[str, str]) -> bytes:
    """Return the document that lists models. `owners` is that of `model_of`."""
    data = [model_of(name, owners) for name in dict.fromkeys(names)]
    return json.dumps({"object": "list", "data": data}).encode()


def event_of(document: bytes) -> bytes:
    """Return a document as a server-sent event."""
    return b"data: " + document + b"\n\n"


def _finish_reason(summary: Summary) -> str:
    return "stop" if summary.reason == "stop" else "length"


def _usage(summary: Summary) -> Object:
    return {
        "prompt_tokens": summary.prompt_tokens,
        "completion_tokens": summary.tokens,
        "total_tokens": summary.prompt_tokens + summary.tokens,
    }
