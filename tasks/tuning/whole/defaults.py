"""Constants of full training, each with its unit."""

from typing import Final

PART_POSITIONS: Final = 1024  # of a batch that are computed at once, unless one row has more
LOGITS: Final = 1 << 24  # values in memory at once, unless LEAST_ROWS positions have more
LEAST_ROWS: Final = 16
FLOAT: Final = 4  # bytes
COPIES: Final = 7
"""Copies of the weights: they and their gradient in the process, and in the trainer they, their
gradient, two moments, and the best so far."""
COPIES_TOGETHER: Final = 16
"""And in averaging: the shared values of three rounds and of the next one, what the codec has lost,
the checkpoint of these (2), what is in memory while an update is made (2) and while others are
judged or averaged (3), and 4 for the bytes of the updates of four rounds: 64 peers send 0.057 bytes
per weight in each. Decoded are two at a time, however many peers there are."""
NICE: Final = 10  # of the process, so that answers come first
STOP_GRACE: Final = 2.0  # seconds in which the process may end
START_S: Final = 120.0  # seconds in which it must start. Importing torch takes seconds
WATCH_S: Final = 5.0  # seconds without a reply after which the daemon looks whether it is stopped
ANSWER_S: Final = 120.0  # seconds in which it must answer, beside those of a batch …
LEAST_SPEED: Final = 2e8  # … computed at this many flop/s, which every computer reaches
