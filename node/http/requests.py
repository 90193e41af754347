"""Requests of the API: JSON bodies become typed and bounded structures. No I/O.

Each structure lists every parameter that is accepted. A parameter that this node cannot honour has
a type that only its neutral value fits, so that it is refused by name instead of being ignored.
"""

import re
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal, TypeAlias, TypeVar

from msgspec import Meta

from ...tasks.defaults import MAX_BIAS, MAX_TOP, STOP_STRING_CHARACTERS, TEXT_MESSAGES
from ...tasks.engine.interface import NO_RULES, MinP, Penalty, Repetition, Rules, Sampling
from ...tasks.inference.generation import GenerateRequest
from ...tasks.text.process import ChatTurn
from ...transport.decoding import read_json
from ...transport.errors import Undecodable
from ...transport.message import Message
from .. import defaults
from ..control.messages.models import NAME_LIMIT
from ..errors import ApiRefusal

STOPS: Final = 4  # stop strings of one request, as OpenAI allows
COMPLETION_TOKENS: Final = 16  # tokens of a completion without `max_tokens`, as OpenAI generates
_SEED_BITS: Final = 64
_PARTS: Final = 1024  # parts of one message
_TOKEN_ID: Final = re.compile("0|[1-9][0-9]{0,9}")
LABEL: Final = 512  # characters of a text that is ignored

B = TypeVar("B", bound=Message)
_Unsupported: TypeAlias = None
_Tokens = Annotated[int, Meta(ge=1, le=2**24)]
_Added = Annotated[float, Meta(ge=-100, le=100)]
_Label = Annotated[str, Meta(max_length=LABEL)]
_Stop = Annotated[str, Meta(min_length=1, max_length=STOP_STRING_CHARACTERS)]
Top = Annotated[int, Meta(ge=0, le=MAX_TOP)]
Model = Annotated[str, Meta(min_length=1, max_length=NAME_LIMIT)]


class TextPart(Message, frozen=True, forbid_unknown_fields=True):
    """A part of a message's content. Only text is supported."""

    type: Literal["text"]
    text: str


class ChatMessage(Message, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One message of a conversation. `name` is ignored."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Meta(min_length=1, max_length=_PARTS)]
    name: _Label | None = None
    annotations: _Unsupported = None
    audio: _Unsupported = None
    function_call: _Unsupported = None
    refusal: _Unsupported = None
    tool_calls: _Unsupported = None

    def turn(self) -> ChatTurn:
        """Return the message as a turn for the chat template, whose name for `developer` is
        `system`."""
        role = "system" if self.role == "developer" else self.role
        if isinstance(self.content, str):
            return ChatTurn(role, self.content)
        return ChatTurn(role, "".join(part.text for part in self.content))


class StreamOptions(Message, frozen=True, forbid_unknown_fields=True):
    """Options of a streamed response. `include_obfuscation` is ignored. `resumable` is an addition
    of this API: the answer goes on for a while when the connection drops."""

    include_usage: bool | None = None
    resumable: bool | None = None
    include_obfuscation: bool | None = None


class ResponseFormat(Message, frozen=True, forbid_unknown_fields=True):
    """Form of the answer. Only text is supported."""

    type: Literal["text"]


class _SharedParameters(Message, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters that chat completions and completions share. `exact` and `received` are additions
    of this API (docs/spec/api.md)."""

    model: Model
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: _Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    seed: int | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=STOPS)] | None = None
    n: Literal[1] | None = None
    min_p: MinP | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    logit_bias: Annotated[dict[str, _Added], Meta(max_length=MAX_BIAS)] | None = None
    exact: bool | None = None
    received: str | None = None
    user: _Label | None = None

    def check(self) -> None:
        """Raise ValueError if parameters contradict each other or the seed is out of range."""
        if self.stream_options is not None and not self.stream:
            raise ValueError("`stream_options`: expected only together with `stream`")
        if self.seed is not None and not -(2 ** (_SEED_BITS - 1)) <= self.seed < 2**_SEED_BITS:
            raise ValueError("`seed`: expected a whole number of 64 bits")
        if self.received and self.seed is None:
            raise ValueError("`seed`: expected together with `received`")
        for token in self.logit_bias or ():
            if _TOKEN_ID.fullmatch(token) is None or int(token) >= 2**31:
                raise ValueError("`logit_bias`: expected token ids, from 0 to 2^31 - 1, in quotes")

    def rules(self) -> Rules:
        """Return the rules that change logits."""
        bias = {int(token): added for token, added in (self.logit_bias or {}).items()}
        repetition = self.repetition_penalty
        return Rules(
            tuple(sorted(bias.items())),
            1.0 if repetition is None else repetition,
            self.frequency_penalty or 0.0,
            self.presence_penalty or 0.0,
        )


class ChatBody(_SharedParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=TEXT_MESSAGES)]
    max_completion_tokens: _Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    response_format: ResponseFormat | None = None
    modalities: Annotated[list[Literal["text"]], Meta(max_length=1)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    audio: _Unsupported = None
    function_call: _Unsupported = None
    functions: _Unsupported = None
    prediction: _Unsupported = None
    reasoning_effort: _Unsupported = None
    tools: _Unsupported = None
    verbosity: _Unsupported = None
    web_search_options: _Unsupported = None
    # Ignored: they change nothing about the answer.
    metadata: Annotated[dict[_Label, _Label], Meta(max_length=16)] | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: _Label | None = None
    prompt_cache_retention: _Label | None = None
    safety_identifier: _Label | None = None
    service_tier: _Label | None = None
    store: bool | None = None

    def check(self) -> None:
        """Raise ValueError if parameters contradict each other or the seed is out of range."""
        _SharedParameters.check(self)
        both = self.max_tokens, self.max_completion_tokens
        if None not in both and both[0] != both[1]:
            raise ValueError("`max_tokens`: expected the same number as `max_completion_tokens`")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("`top_logprobs`: expected only together with `logprobs`")


class CompletionBody(_SharedParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of `POST /v1/completions`."""

    prompt: str | Annotated[list[str], Meta(min_length=1, max_length=1)]
    logprobs: Top | None = None
    best_of: Literal[1] | None = None
    echo: bool | None = None
    suffix: _Unsupported = None

    def check(self) -> None:
        """Raise ValueError if a parameter is not supported or out of range."""
        _SharedParameters.check(self)
        if self.echo:
            raise ValueError("`echo`: expected false, because the prompt is not repeated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request in the words of this program. A `seed` of None means a random one. If
    `max_tokens` is None, the model decides, up to the gateway's limit."""

    model: str
    prompt: str | None = None
    messages: tuple[ChatTurn, ...] | None = None
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    rules: Rules = NO_RULES
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    top: int = 0  # most likely tokens to show with each token
    stream: bool = False
    include_usage: bool = False
    resumable: bool = False
    exact: bool = False
    received: str = ""
    user: str = ""

    def for_gateway(self, random: int) -> GenerateRequest:
        """Return the request for the gateway. `random` is the seed if the client gave none."""
        seed = random if self.seed is None else self.seed
        model, _, adapter = self.model.partition("+")
        return GenerateRequest(
            model=model,
            adapter=adapter,
            prompt=self.prompt,
            messages=self.messages,
            raw=self.messages is None,
            max_tokens=self.max_tokens,
            sampling=Sampling(self.temperature, self.top_k, self.top_p, seed, self.min_p),
            rules=self.rules,
            stop=self.stop,
            logprobs=self.logprobs,
            top=self.top,
            user=self.user,
            exact=self.exact,
            received=self.received,
        )


def read_chat(data: bytes | bytearray) -> Asked:
    """Parse the body of a chat completion. Raises ApiRefusal if it is invalid."""
    body = read_body_as(ChatBody, data)
    tokens = body.max_completion_tokens
    return replace(
        _shared(body),
        messages=tuple(message.turn() for message in body.messages),
        max_tokens=body.max_tokens if tokens is None else tokens,
        logprobs=bool(body.logprobs),
        top=body.top_logprobs or 0,
    )


def read_completion(data: bytes | bytearray) -> Asked:
    """Parse the body of a completion. Raises ApiRefusal if it is invalid."""
    body = read_body_as(CompletionBody, data)
    return replace(
        _shared(body),
        prompt=body.prompt if isinstance(body.prompt, str) else body.prompt[0],
        max_tokens=COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=body.logprobs is not None,
        top=body.logprobs or 0,
    )


def _shared(body: _SharedParameters) -> Asked:
    """Return the parameters that both kinds of body have."""
    stop = body.stop or ()
    return Asked(
        model=body.model,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        min_p=body.min_p or 0.0,
        rules=body.rules(),
        seed=None if body.seed is None else body.seed % 2**_SEED_BITS,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
        resumable=body.stream_options is not None and bool(body.stream_options.resumable),
        exact=bool(body.exact),
        received=body.received or "",
        user=body.user or "",
    )


def read_body_as(kind: type[B], data: bytes | bytearray) -> B:
    """Parse a body. Raises ApiRefusal, which names the parameter at fault, if it is invalid."""
    try:
        return read_json(kind, data, limit=defaults.API_BODY)
    except Undecodable as error:
        raise _refusal(error.message) from None


# What msgspec says about a body, and what a refusal makes of it.
_PLACE: Final = re.compile(r"(.*) - at `\$\.?([^`]*)`", re.DOTALL)
_UNKNOWN: Final = re.compile(r"object contains unknown field `([\w.-]{1,64})`")
_MISSING: Final = re.compile(r"object missing required field `(\w+)`")
_OWN: Final = re.compile(r"`(\w+)`: ")
_EXPECTED: Final = {
    "n": "expected 1: this API generates one answer for each request",
    "best_of": "expected 1: this API generates one answer for each request",
    "top_logprobs": f"expected a whole number from 0 to {MAX_TOP}",
    "frequency_penalty": "expected a number from -2 to 2",
    "presence_penalty": "expected a number from -2 to 2",
    "repetition_penalty": "expected a number from 0.01 to 100; 1 changes nothing",
    "min_p": "expected a number from 0 to 1",
    "logit_bias": f"expected at most {MAX_BIAS} token ids in quotes, each with a number from -100 "
    "to 100",
    "prompt": "expected a text, or a list of exactly one text",
    "input": "expected a text, token ids, or a list of texts or of lists of token ids, none empty",
    "encoding_format": "expected `float` or `base64`",
}


def _refusal(text: str) -> ApiRefusal:
    """Return the refusal for a body, from the decoder's error text. It names the parameter."""
    place = _PLACE.fullmatch(text)
    text, path = (place[1], place[2]) if place is not None else (text, "")
    param = path or None
    name = re.split(r"[.\[]", path)[0]
    if (unknown := _UNKNOWN.fullmatch(text)) is not None:
        param = f"{path}.{unknown[1]}" if path else unknown[1]
        text = f"`{param}` is not a parameter of this API"
    elif (missing := _MISSING.fullmatch(text)) is not None:
        param = f"{path}.{missing[1]}" if path else missing[1]
        text = f"`{param}` is missing"
    elif text.startswith("expected `null`, got"):
        text = f"`{path}` is not supported"
    elif path:
        text = f"`{path}`: {_EXPECTED.get(name, text)}"
    elif (own := _OWN.match(text)) is not None:
        param = own[1]
    else:
        text = f"the body is not the expected JSON object: {text.replace('jSON', 'JSON')}"
    return ApiRefusal(400, "invalid_value", text, param=param)
