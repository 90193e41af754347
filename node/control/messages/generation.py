"""Messages of `run`, and the options for sampling tokens that jobs have too."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from ... import defaults
from .encoding import Ask, Event, Items, Number, Reply, Text, Whole
from .models import NAME_LIMIT, Name

STOP_LIMIT: Final = 16  # stop strings of one request


@dataclass(frozen=True, slots=True, kw_only=True)
class AskForText(Ask[Reply, Event]):
    """A request for text of a model. Without a seed, a random one counts."""

    model: Name
    raw: bool = False
    temperature: Annotated[float, Number(0.0, 100.0)] = 0.0
    top_k: Annotated[int, Whole(0, 2**31)] = 0
    top_p: Annotated[float, Number(0.0, 1.0)] = 1.0
    seed: Annotated[int, Whole(0, 2**64 - 1)] | None = None
    stop: Annotated[tuple[Annotated[str, Text(NAME_LIMIT)], ...], Items(0, STOP_LIMIT)] = ()


@dataclass(frozen=True, slots=True)
class Hop:
    """A stage of a chain. `layers` is `A:B`, B exclusive."""

    peer: str
    layers: str


@dataclass(frozen=True, slots=True)
class Routed:
    """The chain that generates from now on."""

    stages: tuple[Hop, ...]
    event: Literal["routed"] = "routed"


@dataclass(frozen=True, slots=True)
class Piece:
    """The next piece of the text."""

    text: str
    event: Literal["text"] = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A generated text. `reason` is `stop`, `length` or `context`.

    `tokens_per_s` counts the tokens after the first one. `hop_ms` is the time in which no stage
    computed, divided by those tokens and by the stages.
    """

    text: str
    reason: str
    prompt_tokens: int
    tokens: int
    ttft_ms: float
    tokens_per_s: float
    hop_ms: float
    seed: int
    nodes: tuple[Hop, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(AskForText[Answer, Routed | Piece]):
    """Run a model on a prompt."""

    op = "run"
    prompt: Annotated[str, Text(defaults.CONTROL_REQUEST_LIMIT)]
    max_tokens: Annotated[int, Whole(1, 2**24)] | None = None
