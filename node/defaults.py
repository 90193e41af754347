"""Constants of the daemon, each with its unit."""

DISK_LEAST = 256 * 2**20  # bytes: the least limit on the library
LISTEN_ADDRESS = "0.0.0.0"

# The control socket (docs/spec/control.md).
CONTROL_REQUEST_LIMIT = 1 << 20  # bytes of one request line
CONTROL_REQUEST_TIMEOUT = 10.0  # seconds for the request line to arrive
CONTROL_WRITE_TIMEOUT = 30.0  # seconds a client may leave an answer unread
CONTROL_CONNECTIONS = 64  # clients at once; further ones are refused

INVITE_LIFETIME = 24 * 3600.0  # seconds
INVITE_USES = 1  # joins per code
INVITE_LIMIT = 64  # outstanding codes per node
INVITE_FILE_LIMIT = 64 << 10  # bytes

DRAIN_TIME = 8.0  # seconds that running requests get to end when the node stops
DRAIN_LOOK = 0.05  # seconds between two looks at what still runs
REMEMBER_PAUSE = 10.0  # seconds between two writes of the remembered peers

MEET_TIMEOUT = 4.0  # seconds for a link to a live member that a request needs
CONNECT_TIMEOUT = 15.0  # seconds for all ways to a member together
BOOTSTRAP_TIMEOUT = 10.0  # seconds for one address to answer
GRANT_TIMEOUT = 45.0  # seconds until who invited has written down that we are a member
GROUP_FILE_LIMIT = 64 << 10  # bytes
REDEEMED = 256  # joins by a code that are under way at once
JOINED = 4096  # members that are remembered to have come in by a code

SMALL_FILE_LIMIT = 8192  # bytes of the port, pid, and peers files
# Memory that the settings do not bound: the daemon takes 85 to 105 MB, an engine's worker without
# layers 205 MB, a text process 32 MB (measured on x86-64, torch 2.13).
PROGRAMS_MEMORY = 400 * 2**20  # bytes
# One layer of Llama 3.2 1B takes 122 MB in bfloat16, and 4 kB a token of an answer's state.
LAYER_MEMORY = 150 * 2**20  # bytes

JOURNAL_PAUSE = 2.0  # seconds between two looks at what has changed for the log
JOURNAL_NAMED = 3  # peers named in one line of it

SETTINGS_FILE_LIMIT = 64 << 10  # bytes
SETTING_LIMIT = 2000  # characters of one value
EMBEDDED_MODEL = "tiny"
EMBEDDED_ROOT = "3c9fb63286f9ac5cb688ca64b92f7a15ecada07d32c2ccc1b35e4ae1deee98dc"
EMBEDDED_PAUSE = 30.0  # seconds until it is tried again where there was no room for it

BOOTSTRAP_PAUSE = 0.5  # seconds until an address that does not answer is tried again, doubled to
BOOTSTRAP_PAUSE_MOST = 30.0  # seconds
MEETING_TIME = 5.0  # seconds a joining node waits for others, and what they say, before it chooses
MEETING_LOOK = 0.1  # seconds between two looks
OWN_FIRST = 4  # addresses of interfaces that are published before those that others found: the
# further ones may be of virtual switches
REMEMBERED_PEERS = 16  # addresses kept for the next start
HOLE_TIME = 5.0  # seconds that layers are missing before it is told
HOLE_LOOK = 1.0  # seconds, at least, between two looks at that
WATCH = 0.5  # seconds between two looks at what a component says of itself

RATE_LEAST = 10_000  # bytes per second; with a lower cap not even calls come through in time
RATE_SPAN = 1.0  # seconds between the two looks that make the rates of `shoal status --links`
MEASURING = 25.0  # seconds that `shoal doctor` waits for a measurement at most
ALONE = 5.0  # seconds after its start that a node without a link is taken to be alone

NEEDED_LOOK = 1.0  # seconds between two looks at what of the state is needed
STATE_MEMORY = 4 * 2**30  # bytes: a machine with less keeps what it needs of the state
STATE_DISK = 4 * 2**30  # bytes that are free: the same

DEMAND_BITS = (24, 32)  # of an IPv4 and an IPv6 address, which make one network: brokers of
# tunnels give each customer several /48 of one /32
DEMAND_JOBS = 16  # of one author that are looked at for which models are wanted

STALL = 0.05  # seconds a step of a task may hold the event loop before it is counted

# The DHT.
ASK_TIMEOUT = 4.0  # seconds for a link to somebody who is asked a few questions
DIAL_PAUSES = (20.0, 60.0)  # seconds between two dials for the DHT's background work: first, most.
# A dial between homes takes some hundred packets, and member records say the same as records there
# (ADR 0027)
SAY_PAUSE = 1.0  # seconds between two looks at what this node says of itself
LEAVE_TIME = 1.5  # seconds in which a node that ends takes back what it said
PEER_ADDRESSES = 8  # addresses of this node in a record of the DHT
SHARD_RECORDS = 4  # shards of one model that are told of there
MEMBERS_READ = 8  # records of members read at once for what they say: 1 ms each at most
FIND_MOST = 64  # records of one key that `shoal find` shows at most
FIND_ENOUGH = 16  # authors after which it asks no more
FIND_MODELS = 4  # models of one name whose holders it shows
FIND_TIME = 10.0  # seconds that it looks at most
FIND_KEY = 400  # characters of what `shoal find` is asked
SEEK_ENOUGH = 32  # that serve layers of a model, after which no more are looked for
SEEK_LINKS = 16  # of them that are linked with for one request
SEEK_FIND = 4.0  # seconds that they are looked for
SEEK_MEET = 6.0  # seconds for the links to them
SEEK_PAUSE = 5.0  # seconds until those of the same model are looked for again
PROVIDERS_ENOUGH = 32  # holders of a root after which no more are looked for
PULL_PATIENCE = 60.0  # seconds without a single new chunk, then a pull fails
PROGRESS_PAUSE = 2.0  # seconds between two lines of a daemon about what it fetches
SPEED_LOOK = 60.0  # seconds between two looks at how fast this node has become
SPEED_CHANGE = 0.25  # of it, that is worth telling others
UNTOLD_PATIENCE = 5.0  # seconds that linked nodes are asked for what nobody says to hold
PULL_LOOKS = 3  # for holders of a model, then nobody holds it
PULL_PAUSE = 2.0  # seconds between them
SHOW_TIME = 3.0  # seconds that `shoal model show` looks for who vouches
VOUCHERS_SHOWN = 32  # of one model
NAMED_LAYERS = 1_024  # of a model that a record of the DHT can name (dht/defaults.py)

MISHAP_KINDS = 32  # mistakes of ours that are counted apart (node/mishaps.py)

# Jobs and usage.
JOBS_AT_ONCE = 64  # in one request
JOBS_SHOWN = 1_000
JOBS_LOOK = 0.5  # seconds, at most, between two looks at jobs whose results a client waits for
JOBS_COUNTED = 4  # that are looked at for that before others run: 1.4 to 4 ms each, at worst
CLAIMS_SHOWN = 64  # of one job
USAGE_SHOWN = 1_000
