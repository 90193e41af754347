"""Dialects of OpenAI's API: which requests each kind of engine takes, and their form. No I/O.

All of them serve OpenAI's API, but each ignores other parameters without a word. A dialect lists
what its engine honours (`takes`), and has the values that switch off the engine's own defaults.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from msgspec import Meta

from ...transport.decoding import read_json
from ...transport.errors import Undecodable
from ...transport.message import Message
from . import defaults
from .errors import EngineFailed
from .http import EngineRequest
from .messages import CHAT, TEXT, TOP_K, ShareAsk, ShareBody

_SEEDS: Final = 2**31  # seeds that every engine takes; larger ones count modulo this


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of engine.

    `takes` are the kinds of requests and the parameters that it honours. `neutral` has parameters
    that are sent if the request has no value for them.
    """

    name: str
    takes: tuple[str, ...]
    neutral: Mapping[str, object] = field(default_factory=dict)


# llama.cpp keeps the 40 likeliest tokens, and vLLM takes defaults from the model's folder.
_LLAMA: Final = Dialect("llama.cpp", (CHAT, TEXT, TOP_K), {"top_k": 0, "min_p": 0.0})
_VLLM: Final = Dialect(
    "vLLM", (CHAT, TEXT, TOP_K), {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
)
# Ollama puts completions through its template as well, so it continues no raw text.
_OLLAMA: Final = Dialect("Ollama", (CHAT,))
_LM_STUDIO: Final = Dialect("LM Studio", (CHAT, TOP_K))
_OTHER: Final = Dialect("other", (CHAT,))
_BY_OWNER: Final = {
    "llamacpp": _LLAMA, "vllm": _VLLM, "library": _OLLAMA, "organization_owner": _LM_STUDIO,
}  # fmt: skip


class _Meta(Message, frozen=True):
    n_ctx: object = None
    n_ctx_train: object = None


class _Listed(Message, frozen=True):
    """A model in an engine's list. The context has several names; a value of a wrong type counts as
    unknown."""

    id: Annotated[str, Meta(min_length=1, max_length=defaults.MODEL_CHARACTERS)]
    owned_by: object = None
    max_model_len: object = None  # vLLM
    meta: _Meta | None = None  # llama.cpp

    @property
    def context(self) -> int:
        """The context in tokens; 0 is unknown."""
        meta = self.meta or _Meta()
        for found in (self.max_model_len, meta.n_ctx, meta.n_ctx_train):
            if type(found) is int and 0 < found <= 2**40:
                return found
        return 0


class _List(Message, frozen=True):
    data: Annotated[tuple[_Listed, ...], Meta(max_length=defaults.MODELS)]


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A model that an engine serves, under the engine's own name. `context` is in tokens; 0 is
    unknown."""

    name: str
    dialect: Dialect
    context: int


def read_models(data: bytes, server: str) -> tuple[EngineModel, ...]:
    """Return the models of an engine's list. `server` is the response's header `Server`.

    Raises EngineFailed if the list is malformed.
    """
    try:
        listed = read_json(_List, data, limit=defaults.LIST_BYTES).data
    except Undecodable:
        raise EngineFailed("bad-engine", "the engine's list of models is malformed") from None
    dialects = [_dialect(model.owned_by, server) for model in listed]
    return tuple(
        EngineModel(model.id, dialect, model.context)
        for model, dialect in zip(listed, dialects, strict=True)
    )


def _dialect(owner: object, server: str) -> Dialect:
    if server.lower().startswith("llama.cpp"):
        return _LLAMA
    return _BY_OWNER.get(owner, _OTHER) if isinstance(owner, str) else _OTHER


def request_of(model: EngineModel, ask: ShareAsk, body: ShareBody) -> EngineRequest:
    """Return the request that an engine gets. A peer chooses only the values in it."""
    fields: dict[str, object] = dict(model.dialect.neutral)
    fields |= {
        "model": model.name,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": ask.max_tokens,
        "temperature": ask.temperature,
        "top_p": ask.top_p,
        "seed": ask.seed % _SEEDS,
    }
    if ask.top_k:
        fields["top_k"] = ask.top_k
    if body.stop:
        fields["stop"] = list(body.stop)
    if ask.raw:
        return EngineRequest("/v1/completions", _json(fields | {"prompt": body.prompt}))
    turns = [{"role": turn.role, "content": turn.content} for turn in body.messages]
    return EngineRequest("/v1/chat/completions", _json(fields | {"messages": turns}))


def _json(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, allow_nan=False).encode()
