"""Messages of `run`, and the sampling options that requests for jobs share with it."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal, Never

from ....tasks.defaults import MAX_BIAS
from ... import defaults
from .encoding import Ask, Event, IfKnown, Items, Number, Reply, TextBound, Whole
from .models import NAME_LIMIT, Name

STOP_LIMIT: Final = 16  # stop strings of one request
TOKEN_LIMIT: Final = 128  # characters of the token of an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class AskForText(Ask[Reply, Event]):
    """Base of the requests that generate text with a model. If `seed` is None, the daemon chooses a
    random one."""

    model: Name
    raw: bool = False
    temperature: Annotated[float, Number(0.0, 100.0)] = 0.0
    top_k: Annotated[int, Whole(0, 2**31)] = 0
    top_p: Annotated[float, Number(1e-9, 1.0)] = 1.0
    min_p: Annotated[float, Number(0.0, 1.0)] = 0.0
    seed: Annotated[int, Whole(0, 2**64 - 1)] | None = None
    stop: Annotated[tuple[Annotated[str, TextBound(NAME_LIMIT)], ...], Items(0, STOP_LIMIT)] = ()


@dataclass(frozen=True, slots=True)
class ChainStage:
    """One stage of a chain. `layers` has the form `A:B`, where B is exclusive."""

    peer: str
    layers: str


@dataclass(frozen=True, slots=True)
class ChainChosen:
    """Event that names the chain which generates the following text. With the `seed` any gateway
    gives the same text."""

    stages: tuple[ChainStage, ...]
    seed: IfKnown[int] = None
    event: Literal["routed"] = "routed"


@dataclass(frozen=True, slots=True)
class SharerChosen:
    """Event that names the member whose engine generates the following text. The model has no
    root: its weights are that member's word."""

    peer: str
    event: Literal["shared"] = "shared"


@dataclass(frozen=True, slots=True)
class LayersAwaited:
    """Event: nodes of the chain are lost, and the answer waits until another node has loaded their
    `layers`, each in the form `A:B`, for `seconds` at most."""

    layers: tuple[str, ...]
    seconds: float
    event: Literal["waits"] = "waits"


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Event that carries the next piece of the text."""

    text: str
    event: Literal["text"] = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedText:
    """A complete generated text, with its figures.

    `reason` says why it ended: `stop`, `length` or `context`. `ttft_ms` is the time to the first
    token. `tokens_per_s` and `hop_ms` concern the tokens after the first one. `hop_ms` is the mean
    time per token and stage, in milliseconds, without the time spent computing. `nodes` is the
    chain. `shared_by` is the member whose engine answered, if the model has no root.
    """

    text: str
    reason: str
    prompt_tokens: int
    tokens: int
    ttft_ms: float
    tokens_per_s: float
    hop_ms: float
    seed: int
    nodes: tuple[ChainStage, ...]
    shared_by: IfKnown[str] = None


@dataclass(frozen=True, slots=True)
class AnswerResumable:
    """Event: the answer goes on if the connection drops. `resume` with this token, which is a
    secret, continues after the events that the client has received.

    If the daemon is lost, the same request with this `seed` has the same text at another one.
    """

    token: str
    seed: int
    event: Literal["resumable"] = "resumable"


TextEvent = AnswerResumable | ChainChosen | SharerChosen | LayersAwaited | TextPiece
"""An event of `run` or `resume`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Ask[GeneratedText, TextEvent]):
    """Request for the rest of an answer. `since` is the number of events that the client has, not
    counting `resumable`."""

    op = "resume"
    token: Annotated[str, TextBound(TOKEN_LIMIT)]
    since: Annotated[int, Whole(0, 2**31)] = 0


@dataclass(frozen=True, slots=True)
class Forgotten:
    """An answer was stopped and dropped, if it was there."""

    forgotten: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget(Ask[Forgotten, Never]):
    """Request to stop an answer that the client does not want any more."""

    op = "forget"
    token: Annotated[str, TextBound(TOKEN_LIMIT)]


@dataclass(frozen=True, slots=True)
class TokenBias:
    """A number that is added to the logit of a token."""

    token: Annotated[int, Whole(0, 2**31 - 1)]
    bias: Annotated[float, Number(-100.0, 100.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(AskForText[GeneratedText, TextEvent]):
    """Request to generate text that continues or answers a prompt. If `resumable`, the answer goes
    on for a while when the connection drops. `logit_bias` has token ids, each with what is added
    to its logit. If `exact`, nothing travels in int8. `received` is the beginning of the answer,
    which another daemon gave for the same seed: it is left out of the events."""

    op = "run"
    prompt: Annotated[str, TextBound(defaults.CONTROL_REQUEST_LIMIT)]
    max_tokens: Annotated[int, Whole(1, 2**24)] | None = None
    adapter: Name | None = None  # name or root of an adapter
    resumable: bool = False
    exact: bool = False
    received: Annotated[str, TextBound(defaults.CONTROL_REQUEST_LIMIT, 0)] = ""
    frequency_penalty: Annotated[float, Number(-2.0, 2.0)] = 0.0
    presence_penalty: Annotated[float, Number(-2.0, 2.0)] = 0.0
    repetition_penalty: Annotated[float, Number(0.01, 100.0)] = 1.0
    logit_bias: Annotated[tuple[TokenBias, ...], Items(0, MAX_BIAS)] = ()
