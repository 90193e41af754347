"""Messages about the layers that a node serves, and how fast it is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardView:
    """Layers that a node serves.

    `layers` has the form `A:B`, where B is exclusive. `embedding` and `head` say whether the node
    also computes the embedding and the output head. `kv_tokens_free` is the number of tokens for
    which it has free KV memory. Shards of one `exactness` compute the same bits from the same
    input.
    """

    model: str
    root: str
    layers: str
    embedding: bool
    head: bool
    dtype: str
    kv_tokens_free: int
    exactness: str


@dataclass(frozen=True, slots=True)
class PredictionView:
    """How fast a node predicts to be, and how far its predictions are from what it measures.

    `tokens_per_s` is for one request with a short text. `error` is the mean of |predicted -
    measured| / measured of steps, and `samples` the number of measured ones.
    """

    tokens_per_s: float
    error: float
    samples: int


@dataclass(frozen=True, slots=True)
class AnswersView:
    """How far predictions about this node's answers are from what it measures: the mean of
    |predicted - measured| / measured, for the time until the first token and for each further
    one, and the number of measured answers."""

    first_error: float
    first_samples: int
    token_error: float
    token_samples: int


NO_ANSWERS = AnswersView(0.0, 0, 0.0, 0)
"""The view of a node that has not measured an answer yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingView:
    """The layers that a node serves, or its progress until it serves some.

    `why` explains the choice of the layers. `room_tokens` is the number of tokens, of prompt and
    answer together, that one more request of this node can have now. `predicted` is None if the
    node serves nothing, or could not measure its speed. `further` are the parts of the model that
    further devices have, and `predicted` is for `shard` alone.
    """

    phase: str
    state: str
    why: str | None = None
    done_bytes: int
    total_bytes: int
    room_tokens: int | None = None
    shard: ShardView | None
    further: tuple[ShardView, ...] = ()
    predicted: PredictionView | None = None
