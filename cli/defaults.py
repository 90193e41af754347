"""Constants of the commands, each with its unit."""

CONNECT_TIMEOUT = 5.0  # seconds for the daemon to accept a connection
ANSWER_TIMEOUT = 30.0  # seconds for a short reply; streamed replies have no limit
ANSWER_LIMIT = 16 << 20  # most bytes of one line of a reply
STOP_TIMEOUT = 15.0  # seconds for a daemon to end after `shoal stop`
POLL = 0.05  # seconds between two checks of something that has no event
RESUME_PATIENCE = 10.0  # seconds without the daemon after which an interrupted answer is given up
RESUME_PAUSE = 0.2  # seconds between two attempts to continue it
TUNING_PAUSE = 10.0  # seconds between two lines of progress of a fine-tuning without a terminal
PROMPT_LIMIT = 512 << 10  # most bytes of a prompt on standard input

NAME_WIDTH = 64  # most characters that are shown of a text from a peer
KEY_WIDTH = 256  # most characters of a fact's key: all, so that it can be copied
ADDRESS_WIDTH = 400  # characters of an own address including a relay, so that it can be copied
WIDTH = 80  # columns that are assumed if there is no terminal
LEAST_WIDTH = 20  # narrowest width to format for, in columns
TEXT_WIDTH = 100  # longest line of prose on a wider terminal, in characters
MESSAGE_WIDTH = 600  # most characters that are shown of a message

DEMO_NODES = 3
DEMO_MAX_NODES = 16
DEMO_TOKENS = 80
DEMO_PROMPT = "And it came to pass in those days"
DEMO_START_TIMEOUT = 60.0  # seconds for all daemons of a demo to be ready
DEMO_STOP_TIMEOUT = 5.0  # seconds before a demo's daemon is killed
JOBS_FILE_LIMIT = 64 * 2**20  # most bytes of rows on standard input
JOB_FILE_LIMIT = 64 * 2**10  # most bytes of a job file in TOML
JOBS_LISTED = 50  # rows of a table without `--limit`
JOBS_IDS_LIMIT = 640 * 1024  # most bytes of a file of ids: 10,000 ids, which fit in one request
JOBS_RESTART_LOOK = 1.0  # seconds between two checks of whether the daemon runs again
JOBS_PROGRESS_PAUSE = 10.0  # seconds between two lines of progress without a terminal
