"""Constants of this package, with their units."""

# Sessions: docs/spec/session.md.
MAX_STAGES = 64  # peers in one chain
MAX_LAYERS = 4096
MAX_POSITIONS = 2**24  # tokens of one session
MAX_SPAN_TOKENS = 4096  # tokens of one span
MAX_WINDOW = 64  # tokens of one window, a span of drafts
MAX_STOP_IDS = 64
MAX_AHEAD = 4096  # requests of a gateway that wait for room at a stage
MAX_TOP = 20  # most likely tokens that may be reported beside a chosen one
MAX_BIAS = 1024  # token ids of a request to whose logits something is added
PREFILL_TOKENS = 256  # tokens of one prompt span
PREFILL_BYTES = 4 * 2**20  # bytes of one prompt span's hidden states in float32
SKIP_TOKENS = 64  # tokens of one prompt span while stages of the chain fetch KV of the prompt …
SKIP_PART = 0.1  # … or this share of the positions before it
SPANS_UNDER_WAY = 8  # prompt spans of one session that were sent, but have not left the last stage
ASK_PATIENCE = 15.0  # seconds without a byte of a model's files until a waiting request fails
TEXT_PROCESSES = 4  # idle text processes cached, one per model
MAX_NEW_TOKENS = 1024  # tokens generated if the request sets no limit
SESSIONS_PER_STAGE = 64
SESSIONS_PER_GATEWAY = 16  # open sessions of one gateway at one stage
KV_SHARE = 0.5  # share of a shard's KV that one other node's gateway may reserve
KV_TURN = 60.0  # seconds after which one session with more than that share ends if others wait
QUEUED_REQUESTS = 64  # requests that wait for the memory of one shard
QUEUED_OF_ONE = 8  # … of one gateway
QUEUED_TIME = 15.0  # seconds without a repetition after which such a request is forgotten
ANSWER_SOON = 64  # positions of an answer that are reserved before it begins
CHUNKS_STORED = 4096  # chunks of KV that a node offers to peers; a name each, in some 2 MB
CHUNK_REFUSALS = (64, 1.0)  # `kv.part` calls of one peer for unknown chunks: burst, and per second
PARTS_GIVEN = 32  # parts of chunks that a node reads and sends at once …
PARTS_GIVEN_TO_ONE = 16  # … to one peer
PARTS_ASKED = 12  # parts that one fetch waits for at once …
PARTS_BYTES = 4 * 2**20  # … and their bytes
CHUNK_SPARE = 0.05  # share of the time to compute chunks that a slow start of a fetch may take …
CHUNK_TRIPS = 12  # … or this number of round trips, in which a connection becomes fast …
CHUNK_SPARE_MOST = 0.15  # … within this share
CHUNK_HOPE = 0.3  # … or this share of what it is expected to save, where the rate is known
CHUNK_LOOK_SHARE = 0.04  # share that a look for providers may take …
CHUNK_LOOK = 1.0  # … of at most this many seconds
CHUNK_LOOK_UP = 0.25  # seconds that a look must be allowed before the index is asked
CHUNK_WORTH = 0.03  # seconds of computing below which no peer is asked for chunks
CHUNK_TIMEOUT = 20.0  # seconds in which a stage fetches chunks for a session before it computes
CHUNK_HEAD = 0.03  # share of the time to compute chunks by which a fetch precedes computing …
CHUNK_PAID = 0.25  # … and this share of the time to compute what has arrived until then
CHUNK_NAP = 0.005  # seconds between two looks at that, at least
CHUNK_NEAR = 0.03  # … and this number of seconds if the provider is in this machine's network
BESIDE_SPARE = 0.3  # share for which a fetch may be slow beside computing, at most
BESIDE_BYTES = 8 * 2**20  # of parts that wait for the end of the worker's step
CHUNK_TRIES = 2  # providers that are tried for one session
CHUNK_RATE_AGE = 300.0  # seconds for which the rate of a provider is believed
CHUNK_LIKELY = 4  # replicas that are asked for chunks before the index is
CHUNK_SHY = 600.0  # seconds without fetching from strangers after one has sent wrong values
SLOTS = 4  # shards that a node serves at once; at most AIMS of state/defaults.py
SLOT_PAUSE = 5.0  # seconds between two looks at whether a further model needs this node
COSTS_LOOK = 600.0  # seconds between two looks at whether published costs are still right
COSTS_CHANGE = 0.25  # part by which they may be wrong
SLOT_LOOK = 60.0  # seconds between two looks at whether a further shard is still needed
SLOT_IDLE = 600.0  # seconds without a session after which a shard that others serve too is freed
SLOT_STAY = 60.0  # seconds after its loading for which a shard is not unloaded for another model …
SLOT_STAY_LOADS = 4.0  # … or this number of times what the loading took
SLOT_WANTED = 120.0  # … and seconds after its last session, if no other node serves the model
SHARDS_ASKED = (8, 1.0)  # `shard.ask` of one peer: largest burst, and rate per second
SHARDS_ASKED_IN_ALL = (32, 8.0)  # … of all peers together
SHARDS_READ = 4  # models of which a node reads the manifest at once because a gateway asks …
SHARD_READ_TIME = 4.0  # … and the seconds that each may take
NODES_ASKED = 4  # nodes that a gateway asks to load a model
ASK_AGAIN = 5.0  # seconds between two questions whether a node still loads it …
LOAD_PATIENCE = 180.0  # … and in which a request waits for that in all
PROMISES = 64  # models for which a gateway remembers the nodes that load them
PROMISE_BROKEN = 1800.0  # seconds in which a node that did not load a model is asked last
# `stage.probe` of one peer: largest burst, and rate per second. A gateway may have 16 sessions at a
# stage. If each takes half a second, it asks 32 times a second. An answer takes 0.1 ms.
PROBES = (64, 32.0)
PROBES_IN_ALL = (512, 256.0)  # … of all peers together
PROBE_TIMEOUT = 0.4  # seconds in which a stage must answer a probe
BACK_FRESH = 2.0  # seconds for which a gateway uses what a stage says of when it has room
PROMPT_IDLE = 2.0  # seconds after which a prompt of which nothing arrives no longer counts as load
ADAPTERS_ASKED = (8, 0.1)  # adapters loaded for one gateway: largest burst, and rate per second
ADAPTER_WAITS = 24  # sessions at one stage that wait for adapters, a part of SESSIONS_PER_STAGE
ADAPTER_WAITS_OF_ONE = 4  # … of one gateway
ADAPTER_WAITS_UNPROVEN = 12  # … of all gateways of which no adapter was loaded here
ADAPTERS_PROVEN = 256  # gateways of which an adapter was loaded that are remembered
CLOSED_REMEMBERED = 4096  # names of closed sessions at one stage
SENT_BYTES = 256 * 2**20  # logged for replay by one stage, all its sessions together
PASSED_BYTES = 16 * 2**20  # hidden states that a stage passes on for one span: a message of a lane
SPANS_WAITING = 32  # spans of one session that a stage's engine has not answered yet
SPANS_BYTES = 64 * 2**20  # … and the bytes of their inputs, of which a gateway sends 32 MiB at most
SESSION_IDLE = 600.0  # seconds without a message until a stage closes a session
# Seconds without a message after which a session of a first stage that has computed nothing ends
# for others. A gateway waits OPEN_TIMEOUT for all stages to open, and then sends the prompt.
SESSION_SILENT = 10.0
# … and any other session. An earlier stage may be computing the prompts of others, for 60 s at
# most: gateways refuse requests that would wait for longer.
SESSION_RESTS = 60.0
SESSION_WAITED = 5.0  # seconds without computing until an open session no longer delays jobs
OPEN_TIMEOUT = 10.0  # seconds for one stage to open
ADAPTER_TIMEOUT = 60.0  # … if it may have to fetch an adapter
ADAPTER_LOADS = 3  # attempts of a stage to load an adapter that is evicted before a session opens
CLOSE_TIMEOUT = 2.0  # seconds for all stages to close
EMIT_PACE = 0.025  # seconds between two pieces of text of one generation
JOB_PACE = 5.0  # the same for a job, whose tokens are not read as they come
TOKEN_TIMEOUT = 120.0  # seconds that a gateway waits for the chain's next message
SPAN_DEADLINE = 1.0  # seconds without a message after which a stage that is at fault is replaced …
SPAN_FACTOR = 8.0  # … or this multiple of the predicted time between two messages, if longer
SLOW_LEAST = 10.0  # seconds, at least, that a stage has for the first part of a prompt
CRAWL_LAG = 4.0  # deadlines by which tokens lag behind their prediction when the chain crawls
CRAWL_MOVES = 3  # stages that one answer replaces because they crawl
PACE_MEMORY = 0.9  # weight of the longest gap between messages when a shorter one is measured
PACE_GROWTH = 2.0  # most that one gap may multiply the predicted time
WATCH_LOOK = (
    1.0  # seconds, at least, between two rounds of questions to the stages of a silent chain
)
WATCH_DUE = 0.005  # seconds after the deadline at which those that have answered are asked again
WATCH_ANSWER = 0.5  # seconds, at least, that a stage has for its answer
WATCH_ROUND_TRIPS = 4.0  # … or this multiple of the quickest answer so far, if longer
WATCH_PATIENCE = 30.0  # seconds for which a stage may say that it computes for others
REBUILD_TOKENS = 1024  # positions that a stage asks for at once while its state is rebuilt …
REBUILD_BYTES = 2 * 2**20  # … and the bytes of their inputs
REBUILD_SPANS = 4  # spans that may wait for the engine when it asks for more
STANDBY_WORTH = 0.3  # seconds that a stage's state takes to rebuild, from which a standby gets it
STANDBY_AFTER = 2.0  # seconds after which an answer has standbys that get no copies yet …
STANDBY_ANSWERS = 2  # … and answers of one gateway that have such standbys at once
STANDBY_LOOK = 0.5  # seconds between two looks at what a standby lacks …
STANDBY_AGAIN = 15.0  # … and for another standby, if there was none
MOVE_RATIO = 0.95  # a running answer moves to a chain that takes at most this part of its time …
MOVE_PAUSE = 0.5  # seconds that this must save, beside the time to rebuild what new stages lack
MOVES = 3  # … of one answer
MOVE_REPLICAS = 16  # … replicas of each of its stages that are compared
MOVE_PAIRED = 4  # … replicas of which two replace two stages at once
MOVE_LOOK = 2.0  # seconds, at least, between two looks for a faster chain …
MOVE_AGAIN = 15.0  # … and at most
STANDBYS = 8  # standbys' sessions at one stage
STANDBYS_OF_ONE = 4  # … of one gateway
STANDBY_FREE = 0.25  # part of a shard's KV that stays free when a standby opens
STANDBY_RATE = 12.5e6  # byte/s of hidden states while state is rebuilt, if a rate is unknown
COPIES = 8  # sessions that one stage copies to standbys at once
COPY_BYTES = 2**20  # of KV that one call has copied, about
COPY_PART_BYTES = 64 * 2**10  # of the first part, about: 0.05 s on an uplink of 10 Mbit/s
COPY_QUICK = 0.05  # seconds, beside two round trips, within which a part makes the next one larger
COPY_REST = 1.0  # pause after a part, in times that it took
COPY_TIMEOUT = 20.0  # seconds in which a part, or a call for COPY_BYTES, must arrive
CHANGES = 64  # changes of one session's chain
CHANGE_TIMEOUT = 1.0  # seconds, at least, in which a stage accepts a change of its session's chain
ACCUSATIONS = 2  # neighbours that a stage may report as lost during one request
# Peers that a gateway makes a stage dial: largest burst, and rate per second. A chain costs a stage
# two dials at most, and none when its neighbours are linked already.
DIALS = (16, 0.5)
DIALS_IN_ALL = (64, 8.0)  # … of all gateways together
WATCHES = (32, 8.0)  # `session.state` of one gateway: largest burst, and rate per second
CRASHES = 3  # losses of state by stages, without a token in between, after which a request fails
CRASHES_IN_ALL = 10  # losses of state during one request after which it fails in any case
RETURN_LOOK = 0.5  # seconds between attempts to open a session at a stage that will return
RETURN_PATIENCE = 60.0  # seconds that a request waits for a worker that restarts: it takes 2 to 5
REFILL_CLAIM = 10.0  # seconds for which an answer waits until a node declares that it loads layers
# that were lost: nodes decide after MOVE_SETTLE and MOVE_JITTER, and longer after earlier moves …
REFILL_PATIENCE = 600.0  # … and seconds in all, until a node has loaded them
MEMORY_PATIENCE = 30.0  # seconds for which a request waits until a stage has room for it
MEMORY_LOOK = 4.0  # … and between two attempts at most
RESUME_PATIENCE = 600.0  # … if it was preempted there
LOAD_PATIENCE = 540.0  # … and in addition while its layers are loaded: 54 GB from a hard disk
LOAD_CRASHES = 3  # crashes during one load after which a node withdraws its layers
OPEN_ATTEMPTS = 3  # chains that are tried if stages refuse a session
EMBEDDINGS_AT_ONCE = 8  # inputs of all requests for embeddings whose sessions are open at once
ROUTE_AROUND = 60.0  # seconds for which a stage that failed to open is used only as a last resort

# Serving.
PRECISION_LOSS = {"int8": 0.001, "int4": 0.02}  # most relative increase of the loss (ADR 0048)
FLOAT32_PARAMETERS = 100_000_000  # models with fewer are served in float32
KV_CONTEXTS = 16  # the most full contexts for which a shard reserves KV
KV_TOKENS_LEAST = 512  # tokens of KV that a shard must be able to hold
RESOLVE_PAUSE = 3.0  # seconds until an unknown model name is looked up again
MODEL_PATIENCE = 10.0  # seconds until serving fails because the owner's model name is unknown
SERVE_RETRY = (1.0, 60.0)  # seconds until serving is retried: first, maximum
SEEK_TIME = 3.0  # seconds to wait for the records of newly linked nodes

# Usage: docs/spec/jobs.md.
USAGE_PACE = 600.0  # seconds between two writes of the sums
USAGE_LOOK = 1.0  # seconds between two lookups of the author of a job
USAGE_LOOKS = 60  # lookups of an unknown job before the gateway that named it is charged
USAGE_UNKNOWN = 64  # jobs of one gateway that may wait for lookups; it pays for more at once
USAGE_CLAIM = 5.0  # seconds until the peer that names a job pays, if its claim does not arrive
USAGE_WAITS = 4  # uses of one peer that wait for a claim at once …
USAGE_WAITING = 32  # … and of all peers; others pay at once
USAGE_USERS = 256  # sums, one per user and model, before the smallest are merged

# Text: docs/spec/text.md.
TEXT_MEMORY = 2**30  # bytes of address space of the child; a 37 MB tokenizer.json takes 310 MiB
TEXT_LOAD_TIMEOUT = 15.0  # seconds; a 37 MB tokenizer.json takes 0.9
TEXT_TIMEOUT = 2.0  # seconds for one template, one text or one step of a detokenizer
TEXT_BYTES = 2**20  # bytes of one prompt, or of one rendered conversation
TEXT_MESSAGES = 1024  # messages in one conversation
TEXT_REPLY_BYTES = 16 * 2**20  # bytes of one frame from the child
TEXT_ITEMS = 2**16  # elements of one frame; each message of a conversation has five
TEXT_REQUEST_BYTES = 96 * 2**20  # bytes of one frame to the child: all of a model's text files
TEXT_IN_FLIGHT = 256  # requests that one child has not answered yet
TEXT_RETRY = (0.05, 30.0)  # seconds until a dead child is restarted: first, maximum
TEXT_SETTLED = 5.0  # seconds after which the death of a child resets that delay
TOKENIZER_BYTES = 64 * 2**20  # bytes of tokenizer.json
TEXT_FILE_BYTES = 4 * 2**20  # bytes of each other text file of a model
STOP_STRINGS = 16  # stop strings of one request
STOP_STRING_CHARACTERS = 256  # of one stop string
HELD_TOKENS = 32  # tokens withheld while a character is incomplete, before it is shown as it is

# Placement.
DEMAND_NETWORKS = 3  # networks whose members must want a model before a node serves it unasked
DEMAND_LOOK = (0.2, 30.0)  # seconds between two looks at demand: with news, without
DEMAND_TIME = 20.0  # seconds to wait for demand before the embedded model is served instead
AHEAD_STEPS = 2000  # segments examined for nodes that choose their layers before this node
PLACES = 512  # nodes of one model that a plan includes
PLAN_DROPS = 64  # nodes of a chain released one by one, before all of them are
PLAN_STEPS = 50_000  # nodes examined while PLAN_DROPS nodes are released
CLAIM_WAIT = 2.5  # seconds in which competing claims to the same layers arrive
CLAIM_LONGEST = 10.0  # seconds of changing claims after which a node loads without another wait
MOVE_SETTLE = 4.0  # seconds that a reason to move must last for a node that holds layers
SPREAD_SETTLE = 30.0  # seconds, if all nodes together lack memory for the model: more nodes
# may join, and then another division of the layers is better
MOVES_KEPT = 3600.0  # seconds in which earlier moves make a node wait longer before the next one
MOVE_JITTER = 1.0  # seconds, at most, that a node waits longer than others
CLAIM_TIME = 900.0  # seconds in which a claimed shard must be served before the claim expires
PLACE_LOOK = (
    0.1,
    1.0,
)  # seconds between two looks at the layers of all nodes: without layers, with layers
PLAN_MACHINES = 16  # nodes of one model among which a plan by speed chooses
PLAN_LOOKS = 80  # placements whose speed is predicted for one decision of a node
FACTOR_MOST = 2**20  # times that a measured stage counts as slower than claimed, at most
CLAIM_BELIEF = 16  # times the median of all claimed rates that a claim may count for
MOVE_GAIN = 20  # percent by which a move must make a model faster that is served already
MOVE_HORIZON = 600  # seconds in which such a move must gain more tokens than it costs
MOVE_FETCH_RATE = 5_000_000  # byte/s at which new layers are assumed to arrive
FASTER_SETTLE = 60.0  # seconds that the reason for such a move must last
FASTER_LOOK = 30.0  # seconds, at least, between two looks for such a move
STEADY_TIME = 600.0  # seconds of serving the same layers after which a node relies on a stranger
BACKING_TIME = 5.0  # seconds for which a node uses what it knows of the peers that it trusts
LINKS_LOOK = 10.0  # seconds between two looks of a node whether its links have changed
LINKS_REPORTS = (3.0, 1 / 20)  # reports of its links: at once, and per second
LINKS_AHEAD = (4.0, 1 / 600)  # relayed links to members with adjacent layers for which a node has a
# direct path searched before a chain needs it: at once, and per second
NAMED_NODES = 8  # nodes listed in a sentence about missing layers
MEMORY_SHARE = 0.5  # of the memory available at start, offered if the owner sets no amount
