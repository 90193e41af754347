"""Constants of this package, with their units."""

LEASE = 120.0  # seconds without a sign of its holder after which others may try a job
STEPS_A_LEASE = 3  # signs of progress that are written in one, at most
STEP_PAUSE = 5.0  # seconds, at least, between two of them: each goes to everybody
LOOK = 1.0  # seconds between two looks for something to do, where nothing changes
PAUSE = 0.25  # seconds, at least, between two of them
AT_ONCE = 128  # of all jobs or members that are looked at before others run
HESITATION = 1.0  # seconds between the claim on what falls to another and the work
TIDY = 60.0  # seconds between two looks at own claims that are of no use any more
PRESSED_KEPT = 120.0  # seconds that a claim stays when its job is gone and room is scarce
TRIES = 3  # of one job, before it is left to others
TRY_PAUSE = 5.0  # seconds until the second of them, doubled after each
FAILURES = 3  # times that a job is left so by one node, then its result is that it failed
FAILURES_KEPT = 1024  # jobs of which that is remembered
RUN_TIME = 3600.0  # seconds of one try
LEAVE_TIME = 1.5  # seconds for claims to be taken back when the node stops
LEAVE_SPREAD = 0.5  # seconds for others to hear of it
CLAIM_BYTES = 200  # that a claim takes in its feed besides its result, about
INLINE_BYTES = 1000  # of a result that stands in the claim itself; a larger one is a blob

# The kind `prompt`.
PROMPT_TOKENS = 4096  # to make at most
PROMPT_MESSAGES = 64  # of one conversation
MODEL_PATIENCE = 600.0  # seconds that a model is served by nobody, then its jobs fail
MODELS_WAITED_FOR = 256
SERVED_FOR = 2.0  # seconds for which it is not looked again what models are served

# Of who wants something done.
RESULT_BYTES = 2**20  # of one text
RESULTS = 4096  # kept on this disk
RESULT_READ_KEPT = 86_400.0  # seconds that one stays after it was read
RESULT_KEPT = 30 * 86_400.0  # seconds that it stays when nobody reads it
SETTLE = 30.0  # seconds that an earlier attempt's result may still come, then the job is taken out
FETCH_PATIENCE = 30.0  # seconds without a byte of a result that is a blob
FETCH_TRIES = 3  # then its claimant is refused
FETCHES = 8  # at once
FETCHES_OF_ONE = 2  # of them, of what one claimant says
STORE_TIME = 30.0  # seconds for a job to be on disk
ABSTRACT = 160  # characters of a prompt that are kept with its result
COLLECT_PAUSE = 5.0  # seconds between two looks at jobs that are done
REFUSE_PAUSE = 60.0  # seconds until a disk that takes no results is tried again
