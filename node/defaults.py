"""Constants of the daemon, each with its unit."""

DISK_LEAST = 256 * 2**20  # bytes: the smallest disk limit that an owner can set for the library
LISTEN_ADDRESS = "0.0.0.0"
MOST_DEVICES = 16  # devices on which one node computes; at most DEVICES of state/defaults.py

# The control socket (docs/spec/control.md).
CONTROL_REQUEST_LIMIT = 1 << 20  # bytes of one request line
CONTROL_REQUEST_TIMEOUT = 10.0  # seconds for the request line to arrive
CONTROL_WRITE_TIMEOUT = 30.0  # seconds for which a client may leave a reply unread
CONTROL_STEP = 64  # items of a reply that are made or encoded before other tasks run
CONTROL_CONNECTIONS = 64  # clients at once; more are refused

# Answers whose clients may come back (docs/spec/control.md).
KEPT_ANSWERS = 64  # kept at once, running and complete ones …
KEPT_OF_ONE = 32  # … and of one owner
KEPT_BYTES = 2 << 20  # bytes of one answer's events …
KEPT_BYTES_IN_ALL = 32 << 20  # … and of all
KEPT_ALONE = 60.0  # seconds for which an answer is generated while no client follows it
KEPT_TIME = 600.0  # seconds for which it is kept after the last client has left
KEPT_LOOK = 1.0  # seconds between two looks at them
KEPT_TOKEN_BYTES = 32  # random bytes of an answer's token

# The HTTP API (docs/spec/api.md).
API_ADDRESS = "127.0.0.1"
API_PORT = 8462
API_TOKEN_BYTES = 32  # random bytes of the token
API_BODY = 4 << 20  # bytes of one request body
API_DISCARD = 16 << 20  # bytes of a refused request that are read, so that its client reads why
API_DISCARD_TIME = 5.0  # seconds for reading them
API_PIECES = 4096  # pieces in which the body of a request may arrive; each costs 0.1 ms
API_HEAD = 16 << 10  # bytes of the request line and the headers
API_HEAD_TIME = 15.0  # seconds for the headers of a request to arrive, also of the next one
API_BODY_TIME = 30.0  # seconds for the body of a request to arrive
API_SEND_TIME = 30.0  # seconds for which a client may leave a response unread
API_AHEAD = 64 << 10  # bytes that a client may send before its last request is answered
API_CONNECTIONS = 64  # connections at once; an idle one is closed for a new one
API_FRESH = 1.0  # seconds that a new client has for its request before another may replace it
API_AWAY = 1.0  # seconds in which a client that is turned away may read why
API_REQUESTS = 16  # answers generated at once; further requests are refused
API_RETRY = 1  # seconds after which a refused client should try again
API_ACCEPT_PAUSE = 0.1  # seconds until connections are accepted again after an error

INVITE_LIFETIME = 24 * 3600.0  # seconds
INVITE_USES = 1  # joins per code
INVITE_LIMIT = 64  # outstanding codes per node
INVITE_FILE_LIMIT = 64 << 10  # bytes

DRAIN_TIME = 8.0  # seconds that running requests get to finish when the node stops
DRAIN_LOOK = 0.05  # seconds between two checks for running requests
REMEMBER_PAUSE = 10.0  # seconds between two writes of the remembered peers

MEET_TIMEOUT = 4.0  # seconds for linking to a live member that a request needs
CONNECT_TIMEOUT = 15.0  # seconds for all strategies of one connection attempt to a member
BOOTSTRAP_TIMEOUT = 10.0  # seconds for one address to answer
GRANT_TIMEOUT = 45.0  # seconds for the inviter to record this node as a member
GROUP_FILE_LIMIT = 64 << 10  # bytes
REDEEMED = 256  # used invitations whose role is remembered
JOINED = 4096  # pairs of peer and invitation that are remembered as joined

SMALL_FILE_LIMIT = 8192  # bytes of the port, pid, and peers files
# Memory that the settings do not bound: the daemon takes 85 to 105 MB, an engine's worker without
# layers 205 MB, a text process 32 MB (measured on x86-64, torch 2.13).
PROGRAMS_MEMORY = 400 * 2**20  # bytes
# One layer of Llama 3.2 1B takes 122 MB in bfloat16, and 4 kB of KV per token.
LAYER_MEMORY = 150 * 2**20  # bytes

JOURNAL_PAUSE = 2.0  # seconds between two checks for changes to log
JOURNAL_NAMED = 3  # most peers that one line of the log names

SETTINGS_FILE_LIMIT = 64 << 10  # bytes
SETTING_LIMIT = 2000  # most characters of one value
EMBEDDED_MODEL = "tiny"
EMBEDDED_ROOT = "3c9fb63286f9ac5cb688ca64b92f7a15ecada07d32c2ccc1b35e4ae1deee98dc"
EMBEDDED_PAUSE = 30.0  # seconds until a failed import of the embedded model is retried

# Seconds until a silent address is dialled again: at first, and at most. Each time, it doubles.
BOOTSTRAP_PAUSE = 0.5
BOOTSTRAP_PAUSE_MOST = 30.0
MEETING_TIME = 5.0  # seconds a joining node waits for other members before it chooses layers
MEETING_LOOK = 0.1  # seconds between two checks
OWN_FIRST = 4  # interface addresses published before the addresses that other nodes observe;
# further interface addresses come last, because they may belong to virtual switches
REMEMBERED_PEERS = 16  # addresses stored for the next start
HOLE_TIME = 5.0  # seconds that layers are missing before it is reported
HOLE_LOOK = 1.0  # shortest time between two checks, in seconds
JOB_RESULT = 1 << 20  # bytes: with less room for content, results of jobs do not fit
JOB_DISK_LOOK = 60.0  # seconds between two checks of that
WATCH = 0.5  # seconds between two checks of the status of a component

RATE_LEAST = 10_000  # bytes per second; with a lower cap even calls time out
RATE_SPAN = 1.0  # seconds between the two samples behind the rates of `shoal status --links`
MEASURING = 25.0  # longest time in seconds that `shoal doctor` waits for a measurement
ALONE = 5.0  # seconds after its start until a node without links stops waiting for some

STATE_MEMORY = 4 * 2**30  # bytes; a machine with less memory stores only the state it needs
STATE_DISK = 4 * 2**30  # bytes; a machine with less free disk space does the same

DEMAND_BITS = (24, 32)  # prefix lengths of an IPv4 and an IPv6 network. Tunnel brokers give each
# customer several /48 of one /32
DEMAND_JOBS = 16  # waiting jobs of one author that are examined for the models they need

STALL = 0.05  # seconds; a longer step of a task is counted as blocking the event loop

# The DHT.
ASK_TIMEOUT = 4.0  # seconds for a link to a peer that is queried
DIAL_PAUSES = (20.0, 60.0)  # seconds between two dials for the DHT's background work: first, most.
# A dial between home networks costs some hundred packets, and member records carry the same facts
# (ADR 0027)
SAY_PAUSE = 1.0  # seconds between two updates of this node's records in the DHT
LEAVE_TIME = 1.5  # seconds that a stopping node spends on withdrawing its DHT records
PEER_ADDRESSES = 8  # most addresses of this node in its DHT record
SHARD_RECORDS = 4  # most shards of one node that are published in the DHT
MEMBERS_READ = 8  # member records whose keys are computed in one step: up to 1 ms each
FIND_MOST = 64  # records of one key that `shoal find` shows at most
FIND_ENOUGH = 16  # authors that are enough to end the look-up
FIND_MODELS = 4  # models of one name whose providers are shown
FIND_TIME = 10.0  # longest time of the look-up in seconds
FIND_KEY = 400  # most characters of the argument of `shoal find`
SEEK_ENOUGH = 32  # nodes serving a model that are enough to end the look-up
SEEK_LINKS = 16  # most of these nodes to which one request links
SEEK_FIND = 4.0  # longest time of the look-up in seconds
SEEK_MEET = 6.0  # longest time for dialling the nodes, in seconds
SEEK_PAUSE = 5.0  # seconds until the nodes of the same model are looked up again
PROVIDERS_ENOUGH = 32  # providers of a root that are enough to end the look-up
PULL_PATIENCE = 60.0  # seconds without a new chunk after which a pull fails
PROGRESS_PAUSE = 2.0  # seconds between two lines about the progress of a fetch
SPEED_LOOK = 60.0  # seconds between two checks of the speed of this node
SPEED_CHANGE = 0.25  # smallest relative change of the speed that is published
UNTOLD_PATIENCE = 5.0  # seconds for asking linked nodes for a blob that no node claims to have
PULL_LOOKS = 3  # look-ups for providers of a model before a pull fails
PULL_PAUSE = 2.0  # seconds between two of these look-ups
PLAN_MEMBERS = 48  # machines among which `shoal plan` places a model, those with most memory
PLAN_LOOKS = (20, 400)  # placements that it compares for each result: least, most
PLAN_WORK = 3000  # … times the number of machines: some 2 s for 64 of them
SHOW_TIME = 3.0  # seconds that `shoal model show` searches for nodes that vouch for a name
VOUCHERS_SHOWN = 32  # most vouchers of one model in a reply
NAMED_LAYERS = 1_024  # most layers of a model that a name record can describe (dht/defaults.py)

MISHAP_KINDS = 32  # bugs of this program that are counted separately (node/daemon/mishaps.py)

# Jobs and usage.
JOBS_AT_ONCE = 64  # most jobs in one request
JOBS_SHOWN = 1_000  # most jobs in one reply
JOBS_LOOK = 0.5  # longest time in seconds between two checks for results that a client waits for
JOBS_COUNTED = 4  # jobs examined before other tasks run: 1.4 to 4 ms each at worst
JOBS_PLACED = 100  # own jobs whose place among those of all users is computed for one list
CLAIMS_SHOWN = 64  # most claims on one job in a reply
USAGE_SHOWN = 1_000  # most rows of usage in one reply
