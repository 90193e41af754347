"""Constants of averaging over volunteers, each with its unit."""

from typing import Final

# Updates.
MAX_VALUES: Final = 1 << 29  # values of the largest vector that is averaged: 2 GiB of float32
INT8_BLOCK: Final = 256  # values that share a scale
INT4_BLOCK: Final = 128  # values that share a scale
SPARSE_CHUNK: Final = 4096  # values of which `keep` are sent. An index has 12 bits
MAX_KEEP: Final = 512  # values kept of a chunk, at most
SPARSE_DECAY: Final = 0.95  # part of the error feedback that stays from one round to the next
MAX_SCALE: Final = 1e6  # largest magnitude of a value in an update
MAX_TOKENS: Final = 1 << 40  # tokens that one update may claim

# Aggregation.
PIECE: Final = 1 << 16  # values that are computed at a time, so that they fit the cache. Specified
REFUSED_NORM: Final = 10.0  # times the round's median norm: an update with a larger norm is refused
CLIPPED_NORM: Final = 2.0  # times the round's median norm: a larger update is scaled down to that
TRIM_ONE_IN: Final = 5  # one in this many dense updates is left out at each end of each value
TOKENS_OVER_MEDIAN: Final = 2.0  # times the median: tokens beyond that add no weight
REFUSED_POINTS: Final = 4  # points that a refused update adds to its author
MAX_POINTS: Final = 16
POINTS_HALVE: Final = 4  # points that halve the weight of an author's updates

# The held-out loss. A correct update may raise it a little by chance.
LOSS_TOLERANCE: Final = 0.01  # of the loss without it
BESIDE_OWN: Final = 1 / 3  # weight of an update that is judged beside a peer's own one, …
BESIDE_TOLERANCE: Final = 0.005  # … and what it may then raise the loss

# Rounds.
MAX_PEERS: Final = 64  # updates in one step
WINDOW: Final = 8  # rounds whose signatures stay in a peer's feed
SIGNED: Final = 4  # steps that one peer may sign in one round
STATES_KEPT: Final = 3  # states that a peer keeps, so that it can go back without a fetch

# Transfer.
LEAST_RATE: Final = 50_000.0  # bytes per second, below which a transfer is abandoned
IDLE_SECONDS: Final = 10.0  # without a byte of a transfer
SENDS: Final = 16  # transfers that are served at once
SENDS_PER_PEER: Final = 3
FETCHES: Final = 4  # transfers that are fetched at once
RETRY_SECONDS: Final = 2.0  # until a failed fetch is retried
