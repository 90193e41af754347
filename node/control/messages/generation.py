"""Messages of `run`, and the sampling options that requests for jobs share with it."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from ... import defaults
from .encoding import Ask, Event, IfKnown, Items, Number, Reply, TextBound, Whole
from .models import NAME_LIMIT, Name

STOP_LIMIT: Final = 16  # stop strings of one request


@dataclass(frozen=True, slots=True, kw_only=True)
class AskForText(Ask[Reply, Event]):
    """Base of the requests that generate text with a model. If `seed` is None, the daemon chooses a
    random one."""

    model: Name
    raw: bool = False
    temperature: Annotated[float, Number(0.0, 100.0)] = 0.0
    top_k: Annotated[int, Whole(0, 2**31)] = 0
    top_p: Annotated[float, Number(1e-9, 1.0)] = 1.0
    seed: Annotated[int, Whole(0, 2**64 - 1)] | None = None
    stop: Annotated[tuple[Annotated[str, TextBound(NAME_LIMIT)], ...], Items(0, STOP_LIMIT)] = ()


@dataclass(frozen=True, slots=True)
class ChainStage:
    """One stage of a chain. `layers` has the form `A:B`, where B is exclusive."""

    peer: str
    layers: str


@dataclass(frozen=True, slots=True)
class ChainChosen:
    """Event that names the chain which generates the following text."""

    stages: tuple[ChainStage, ...]
    event: Literal["routed"] = "routed"


@dataclass(frozen=True, slots=True)
class SharerChosen:
    """Event that names the member whose engine generates the following text. The model has no
    root: its weights are that member's word."""

    peer: str
    event: Literal["shared"] = "shared"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(AskForText[GeneratedText, ChainChosen | SharerChosen | TextPiece]):
    """Request to generate text that continues or answers a prompt."""

    op = "run"
    prompt: Annotated[str, TextBound(defaults.CONTROL_REQUEST_LIMIT)]
    max_tokens: Annotated[int, Whole(1, 2**24)] | None = None
    adapter: Name | None = None  # name or root of an adapter
