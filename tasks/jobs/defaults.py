"""Constants of this package, with their units."""

LEASE = 120.0  # seconds without progress by its claimant after which other nodes may try a job
STEPS_A_LEASE = 3  # progress entries written per lease, at most
STEP_PAUSE = 5.0  # seconds, at least, between two of them, as each goes to every node
LOOK = 1.0  # seconds between two looks for a job if nothing changes
PAUSE = 0.25  # seconds, at least, between two of them
AT_ONCE = 128  # jobs or members processed before other tasks run
HESITATION = 1.0  # seconds between the claim and the work if the job falls first to another node
TIDY = 60.0  # seconds between two removals of own outdated claims
PRESSED_KEPT = 120.0  # seconds for which the claim on a removed job is kept if space is scarce
TRIES = 3  # tries of one job before it is left to other nodes
TRY_PAUSE = 5.0  # seconds before the second try, doubled after each
FAILURES = 3  # rounds of tries by one node after which it reports the job as failed
FAILURES_KEPT = 1024  # jobs whose failures are remembered
RUN_TIME = 3600.0  # seconds of one try
LEAVE_TIME = 1.5  # seconds for withdrawing claims when the node stops
LEAVE_SPREAD = 0.5  # seconds for that to reach other nodes
CLAIM_BYTES = 200  # approximate size of a claim in its feed, without its result
INLINE_BYTES = 1000  # largest result inside a claim; a larger one is a blob

# The kind `prompt`.
PROMPT_TOKENS = 4096  # tokens to generate at most
PROMPT_MESSAGES = 64  # of one conversation
MODEL_PATIENCE = 600.0  # seconds without a node that serves a model, then its jobs fail
MODELS_WAITED_FOR = 256
SERVED_FOR = 2.0  # seconds for which the list of served models is cached

# The author of jobs.
RESULT_BYTES = 2**20  # of one text
RESULTS = 4096  # results on this disk
RESULT_READ_KEPT = 86_400.0  # seconds for which a result is kept after it was read
RESULT_KEPT = 30 * 86_400.0  # seconds for which an unread result is kept
SETTLE = 30.0  # seconds in which an earlier attempt's result may replace a result
FETCH_PATIENCE = 30.0  # seconds without a byte of a result that is a blob
FETCH_TRIES = 3  # failed fetches after which the claimant is refused
FETCHES = 8  # concurrent fetches
FETCHES_OF_ONE = 2  # concurrent fetches of results of one claimant
STORE_TIME = 30.0  # seconds for a job to be on disk
ABSTRACT = 160  # characters of a prompt that are kept with its result
COLLECT_PAUSE = 5.0  # seconds between two looks at jobs that are done
REFUSE_PAUSE = 60.0  # seconds until a disk that refuses results is tried again
