"""Constants of this package, with their units."""

LEASE = 120.0  # seconds without progress by a job's claimant until other nodes may try the job
STEPS_A_LEASE = 3  # the most progress entries written per lease
STEP_PAUSE = 5.0  # least seconds between two of these entries, because each is sent to all nodes
LOOK = 1.0  # seconds between two searches for a job while there is none
PAUSE = 0.25  # least seconds between two searches for a job
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
LEAVE_SPREAD = 0.5  # seconds in which the withdrawal reaches other nodes
CLAIM_BYTES = 200  # approximate size of a claim in its feed, without its result
INLINE_BYTES = 1000  # largest result inside a claim; a larger one is a blob

# The kind `prompt`.
PROMPT_TOKENS = 4096  # the most tokens to generate
PROMPT_MESSAGES = 64  # the most messages of one conversation
MODEL_PATIENCE = 600.0  # seconds without a node that serves a model until its jobs fail
MODELS_WAITED_FOR = 256
SERVED_FOR = 2.0  # seconds for which the list of served models is cached

# The author of jobs.
RESULT_BYTES = 2**20  # the most bytes of one text
RESULTS = 4096  # the most unread results on this disk
RESULT_READ_KEPT = 86_400.0  # seconds for which a result is kept after it was read
RESULT_KEPT = 30 * 86_400.0  # seconds for which an unread result is kept
SETTLE = 30.0  # seconds in which an earlier attempt's result may replace a result
FETCH_PATIENCE = 30.0  # seconds without a byte of a blob until its fetch fails
FETCH_TRIES = 3  # failed fetches of a result until its claimant is refused
FETCHES = 8  # concurrent fetches
FETCHES_OF_ONE = 2  # concurrent fetches of results of one claimant
STORE_TIME = 30.0  # seconds to wait until a submitted job is on disk
ABSTRACT = 160  # characters of a prompt that are kept with its result
COLLECT_PAUSE = 5.0  # seconds between two checks for finished jobs if nothing changes
REFUSE_PAUSE = 60.0  # seconds until a disk that refuses results is tried again
