"""Constants of this package, with their units."""

# Rows that are recomputed.
SHARE = 0.02  # of the rows of a claimant that is known
PROBATION_SHARE = 0.5  # of the rows of a claimant with fewer right rows than PROBATION
PROBATION = 20  # rows that were right, until a claimant is known
ROWS_OF_ONE = 8  # rows of one piece that are recomputed, at most
PIECES_AT_ONCE = 2  # pieces that are checked at once
CHECK_TIME = 120.0  # seconds for one row; what takes longer stays unchecked
BUSY_TRIES = 3  # tries of a row that stages refuse because they are busy
BUSY_PAUSE = 5.0  # seconds between two such tries
LIAR_TIME = 30 * 86_400.0  # seconds for which a liar does no jobs of this node
LIARS_NAMED = 16  # liars that a new job refuses from the start

# What counts as equal. Other chains round differently.
TIE_NATS = 0.1  # by which a token may be less likely than the one that another chain chose
TIES_LEAST, TIES_SHARE = 2, 0.05  # tokens of an answer that may differ so: a count, and a part
MARK_NATS = 0.25  # mean difference of the log-probabilities of an answer's tokens
EMBEDDING_DISTANCE = 0.05  # between two embeddings, which have length 1
LOSS_NATS = 0.05  # difference of a loss for each token …
LOSS_LEAST = 0.1  # … and at least

# Receipts.
PEERS = 128  # claimants whose figures are kept, and published
CREDIT_AGE = 60.0  # seconds for which computed credits are used
