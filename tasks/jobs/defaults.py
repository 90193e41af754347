"""Constants of this package, with their units."""

LEASE = 120.0  # seconds without progress by a job's claimant until other nodes may try the job
SEALED_LEASE = 600.0  # … if the outputs are sealed, because no other node can check the progress
STEPS_A_LEASE = 3  # the most progress entries written per lease
STEP_PAUSE = 5.0  # least seconds between two of these entries, because each is sent to all nodes
LOOK = 1.0  # seconds between two searches for a job while there is none
PAUSE = 0.25  # least seconds between two searches for a job
LOOK_PART = 10.0  # pause between two looks at all jobs, as a multiple of the time of one
YIELD_AFTER = 10.0  # seconds of interactive requests after which jobs in progress stop for them
AT_ONCE = 128  # jobs or members that are processed before other tasks may run
HESITATION = 1.0  # seconds between claim and work if another node is the job's preferred worker
TIDY = 60.0  # seconds between two removals of this node's outdated claims
PRESSED_KEPT = 120.0  # seconds until the claim on a removed job is removed if space is scarce
TRIES = 3  # tries of one job before it is left to other nodes
TRY_PAUSE = 5.0  # seconds before the second try, doubled after each
FAILURES = 3  # rounds of tries by one node after which it reports the job as failed
FAILURES_KEPT = 1024  # jobs whose failures are remembered
RUN_TIME = 3600.0  # the most seconds of one try
LEAVE_TIME = 1.5  # the most seconds for withdrawing claims when the node stops
MOVE_TIME = 10.0  # … if one of them is on work of which another node gets the last state first
LEAVE_SPREAD = 0.5  # seconds in which the withdrawal reaches other nodes
CLAIM_BYTES = 200  # approximate size of a claim in its feed, without its result
INLINE_BYTES = 1000  # largest result inside a claim; a larger one is a blob

# Fairness between users.
TAGS = 4096  # jobs of one user whose finish tags are remembered
USERS = 4096  # users whose virtual time is remembered even if they are behind
WAITS_FOR = 30.0  # seconds for which a user whose job was considered counts as waiting
LEAST_WORK = 0.01  # seconds that a piece costs its user at least
MOST_WEIGHT = 4.0  # the largest weight of a user

# Stragglers.
HEDGE_TIMES = 3.0  # times the time that a claimant expected, after which another node works too
HEDGE_LEAST = 10.0  # seconds more than that, because a short piece is late by chance

# Rows and pieces. How many rows and pieces a job has at most is in state/defaults.py.
ROW_BYTES = 64 * 2**10  # of one line
ROW_TOKENS = 4096  # the most tokens to generate for one row
ROW_MESSAGES = 64  # the most messages of one conversation
ROW_CHOICES = 64  # choices of a question in a row
ROW_MESSAGE = 300  # characters of the message of a row that failed
INPUT_BYTES = 64 * 2**20  # of one job
PIECE_BYTES = 2**20  # of the rows of one piece, sealed or not
SEALED_MARGIN = 2**10  # bytes less for rows or an output, so that they fit when they are sealed
SEALED_INLINE_BYTES = 4 * 2**10  # rows in the spec of a job whose inputs are sealed
SEALED_SPEC_BYTES = 7 * 2**10  # to which what is sealed in a spec is padded at most
INLINE_ROWS_BYTES = 6 * 2**10  # rows in the spec of a job; more are a blob
PIECE_TIME = 10.0  # seconds of work that a node claims at once
PIECES_AT_ONCE = 32  # pieces that one node works on at once, at most
MEASURE_TIME = 5.0  # seconds of work after which its speed is compared with the prediction
ROWS_AT_ONCE = 48  # rows that one node computes at once, at most
FIRST_ROWS = 32  # rows at once before it is known how many have room
EXPECTED_TOKENS = 256  # of an answer that may be longer
UNKNOWN_STEP = 0.02  # seconds of a step, if nothing is known of a model's stages
SPEED_SHARE = 0.3  # weight of the latest measurement of a speed
OUTPUTS_KEPT = 64 * 2**20  # bytes of outputs of unfinished pieces that the next try continues
OPENING_TIME = 0.02  # seconds for which a row waits until the row before has opened its chain
CHARACTERS_A_TOKEN = 3.0  # of a text whose tokens are not counted
BROKEN_SHOWN = 8  # broken lines that are named
MODEL_PATIENCE = 600.0  # seconds without a node that serves a model until its jobs fail
MODELS_WAITED_FOR = 256
SERVED_FOR = 2.0  # seconds for which the list of served models is cached

# Replication of inputs and outputs.
REPLICATE_TIME = 20.0  # seconds in which another node stores a job and its input
REPLICATE_FIND = 5.0  # seconds for which the first node that does jobs is waited for
REPLICATE_COPIES = 3  # nodes that store the input of a job, besides its author
REPLICATE_MORE = 5.0  # seconds for the others after the first one has stored it
REPLICATE_ASKED = 6  # nodes that are asked to store one blob
REPLICATE_AT_ONCE = 8  # jobs of one submission that other nodes are asked to store at once
REPLICATE_AGAIN = (30.0, 600.0)  # seconds between two attempts for this node's jobs: least, most
REPLICATE_AGAIN_LOOK = 5.0  # seconds between two looks for nodes that have come
REPLICATE_BATCH = 32  # jobs with rows of their own that one attempt asks for
REPLICATE_RATE = (
    128.0,
    0.05,
)  # MiB of one peer stored for others: at once, and per second
REPLICATE_TOTAL = (512.0, 0.5)  # MiB of all peers together, because peers cost nothing
REPLICATE_CLAIM_TIME = 5.0  # seconds for which an output waits until its claimant's claim is here
REPLICATE_LOOK = 0.25  # seconds between two checks for a job, or a node, that is to come
KEPT_AFTER = 3600.0  # seconds for which inputs are kept after their author's last job

# Disk space for the blobs of other nodes' jobs.
DISK_PART = 0.125  # of the library's limit, for all of these blobs
PINNED_SHARE = 0.75  # of that, for blobs that peers have asked this node to store
LEAST_CHARGE = 64 * 2**10  # bytes that a blob counts at least, for its files
PINNED_AUTHORS = 8  # the most authors of one pinned blob

# The author of jobs.
RESULT_BYTES = 4 * 2**20  # the most bytes of one piece's output
RESULTS = 16_384  # the most unread results of pieces on this disk
RESULT_READ_KEPT = 86_400.0  # seconds for which a result is kept after it was read
RESULT_KEPT = 30 * 86_400.0  # seconds for which an unread result is kept
TAKEN_OUT = 512  # pieces that were removed and can be listed again if their claimant has lied
SETTLE = 30.0  # seconds in which an earlier attempt's result may replace a result
FETCH_PATIENCE = 30.0  # seconds without a byte of a blob until its fetch fails
FETCH_TRIES = 3  # failed fetches of a result until its claimant is refused
FETCHES = 8  # concurrent fetches
FETCHES_OF_ONE = 2  # concurrent fetches of results of one claimant
STORE_TIME = 30.0  # seconds to wait until a submitted job is on disk
SHOWN_BYTES = 512 * 2**10  # of the output of a job in one message; more are written to a file
ABSTRACT = 160  # characters of a prompt that are kept with its result
COLLECT_PAUSE = 5.0  # seconds between two checks for finished jobs if nothing changes
REFUSE_PAUSE = 60.0  # seconds until a disk that refuses results is tried again
