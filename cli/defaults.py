"""Constants of the commands, each with its unit."""

CONNECT_TIMEOUT = 5.0  # seconds for the daemon to accept
ANSWER_TIMEOUT = 30.0  # seconds for a short answer; streaming ones wait as long as it takes
ANSWER_LIMIT = 16 << 20  # bytes of one answer line
STOP_TIMEOUT = 15.0  # seconds for a daemon to end after `shoal stop`
POLL = 0.05  # seconds between two looks at something that has no event
PROMPT_LIMIT = 512 << 10  # bytes of a prompt read from standard input

NAME_WIDTH = 64  # characters of a peer's text that are shown
KEY_WIDTH = 256  # characters of a fact's key, to be copied
ADDRESS_WIDTH = 400  # characters of an own address, relay and all, to be copied
WIDTH = 80  # columns to write for where there is no terminal
LEAST_WIDTH = 20  # columns that are written for at least
TEXT_WIDTH = 100  # characters of a line of prose, where the terminal is wider
MESSAGE_WIDTH = 600  # characters of an error message that are shown

DEMO_NODES = 3
DEMO_MAX_NODES = 16
DEMO_TOKENS = 80
DEMO_PROMPT = "And it came to pass in those days"
DEMO_START_TIMEOUT = 60.0  # seconds for all daemons of a demo to be ready
DEMO_STOP_TIMEOUT = 5.0  # seconds before a demo's daemon is killed
JOBS_BATCH = 64  # prompts in one request (node/defaults.py)
JOBS_BATCH_BYTES = 512 * 2**10  # of one request
JOBS_FILE_LIMIT = 64 * 2**20  # bytes of a file of prompts
JOBS_LISTED = 50  # in a table, where nothing else is asked for
JOBS_IDS_LIMIT = 640 * 1024  # bytes of a file of ids: some 10,000, which fit into one request
JOBS_RESTART_LOOK = 1.0  # seconds between two looks for a daemon that stopped
JOBS_PROGRESS_PAUSE = 10.0  # seconds between two lines of progress, where there is no terminal
JOBS_FULL_PAUSE = 5.0  # seconds until it is tried again to submit more than there is room for
