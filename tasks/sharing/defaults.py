"""Constants of shared engines, with their units. Spec: docs/spec/sharing.md."""

SHARES = 32  # models that one node shares; at most SHARED of state/defaults.py
FILE_BYTES = 64 * 2**10  # of the file that lists them

# The engine.
CONNECT_TIME = 2.0  # seconds to connect
HEAD_BYTES = 16 * 2**10  # of the status and the headers of a response
INTERIM = 4  # responses with a status below 200 before the real one
LIST_BYTES = 512 * 2**10  # of the list of its models
LIST_TIME = 5.0  # seconds for that list
MODELS = 1024  # models in that list
MODEL_CHARACTERS = 256  # of a model's name at the engine
EVENT_BYTES = 64 * 2**10  # of one event of a streamed answer
ERROR_BYTES = 4 * 2**10  # read of an error's body
ERROR_CHARACTERS = 200  # passed on of its message
FIRST_TIME = 300.0  # seconds to the first event of an answer: Ollama loads models on demand
NEXT_TIME = 60.0  # seconds between two events of an answer
LAST_TIME = 2.0  # seconds for the counts that follow the end of an answer's text
ANSWER_TIME = 1800.0  # seconds of one answer in all, without waiting for its turn
WIRE_BYTES = 4096  # bytes of an answer's events, for each token asked for
WIRE_EXTRA = 256 * 2**10  # … and in addition
WIRE_MOST = 512 * 2**20  # … and in all
TOKEN_BYTES = 256  # of text in one token, at most
ANSWER_BYTES = 16 * 2**20  # of text in one answer, however many tokens are asked for
EXTRA_TOKENS = 1024  # tokens that a chat template may add to a prompt
TURN_TOKENS = 64  # … and for each message
BYTES_PER_TOKEN = 4  # of text, assumed if an engine does not count

# Watching an engine.
LOOK = 5.0  # seconds between two looks at an engine
MISSES = 2  # late answers after which its models are withdrawn; a refused connection is enough
SETTLE = (
    0.0,
    60.0,
)  # seconds for which an engine must answer until it is offered again: first, most
FLAP = 60.0  # seconds of answering after which the next offer is immediate again

# Requests of peers.
AT_ONCE = 4  # requests that one engine answers at once
AT_ONCE_MOST = 64  # … that its owner may choose
WAITING = 64  # requests that wait for one engine
PER_PEER = 8  # requests of one peer that run or wait at one engine
TEXTS = 256  # requests of all peers whose text arrives, each with up to BODY_BYTES
STRANGERS = 4  # … of all peers that are not members
SPENT_HALF = 600.0  # seconds in which the time that a peer has used counts half
SPENT_PEERS = 1024  # peers whose used time is remembered
ASKS = (64, 16.0)  # requests of one peer: largest burst, and rate per second
PROBES = (16, 4.0)  # `share.probe` of one peer: the same
BODY_BYTES = 2**20 + 64 * 2**10  # of a request's body: the text of a prompt, and its frame
BODY_TIME = 30.0  # seconds for the body to arrive
ALIVE = 10.0  # seconds without a frame after which a sharer sends one that says that it is there
SLOW_TIME = 60.0  # seconds for which a gateway may leave frames unread
CLOSE_TIME = 10.0  # seconds for a gateway to end its direction after the last frame
FRAME_BYTES = 64 * 2**10  # of the payload of one frame
RATE_WEIGHT = 0.8  # weight of the earlier mean when an answer's times are measured

# The gateway.
PROBED = 8  # sharers of one name that are probed
PROBE_TIME = 1.5  # seconds for their replies
LINK_TIME = 8.0  # seconds for a link to a sharer
LINK_PAUSE = 0.5  # … and between two dials
TRIES = 3  # sharers that one request is sent to, one after the other
SILENT = 35.0  # seconds without a frame until a sharer counts as lost
WAIT_TIME = 600.0  # seconds until the first text
AVOID = 60.0  # seconds for which a sharer that failed is the last choice
