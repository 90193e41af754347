"""All constants of the package, with their units."""

CHUNK = 2**20  # bytes of every chunk but an object's last one

# Limits of a manifest (docs/spec/model.md). Each is checked before memory is allocated.
MANIFEST_LIMIT = 64 * 2**20  # bytes of an encoded manifest
CONFIG_LIMIT = 2**20  # bytes of a config.json
CONFIG_DEPTH = 32  # nested containers in a config.json
TENSORS_LIMIT = 131_072  # tensors of a model (a 61-layer, 256-expert one has 47,000)
LAYERS_LIMIT = 1_024
ROLES_LIMIT = 2  # names of one tensor
DIMS_LIMIT = 8  # dimensions of a tensor
DIM_LIMIT = 2**31  # values along one dimension
CHUNKS_LIMIT = 2_000_000  # chunks of one object (2 TB)
ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4}  # the dtypes a model may have

# Limits of a model folder, in bytes.
HEADER_LIMIT = 16 * 2**20  # of a safetensors header; the format itself allows 100 MB
INDEX_LIMIT = 16 * 2**20  # of model.safetensors.index.json
TOKENIZER_LIMIT = 64 * 2**20  # of tokenizer.json
FILE_LIMIT = 4 * 2**20  # of the other files
TEMPLATE_LIMIT = 2**20  # of a chat template
SHARDS_LIMIT = 4_096  # safetensors files of one folder
IMPORT_BATCH = 8 * CHUNK  # bytes read, hashed and written in one offloaded call

# The chunk store.
DISK_RESERVE = 128 * 2**20  # bytes always left free on the disk
VERIFIED_FOR = 600.0  # seconds for which a verified file is served without verifying it again
VERIFIED_LIMIT = 65_536  # files for which this is remembered
STORED_AT_ONCE = 2  # threads that verify and store the chunks of one fetch
STORED_TOGETHER = 8  # chunks that one of these threads takes at once, if as many wait
SETTLE_CHUNKS = 64  # staged chunks of a fetch at which they are made durable together
SETTLE_AFTER = 5.0  # seconds after which staged chunks are made durable in any case
TREES_KEPT = 16  # trees of blobs cached in memory
DISK_SHARE = 0.5  # default quota, if the owner sets none: this share of the disk that is free or
DISK_MOST = 100 * 2**30  # used by the library, but at most this many bytes
DISK_KEPT = (0.05, 2**30)  # left free of both: the larger of this share and this many bytes
FILES_MOST = 256 * 2**20  # bytes of models of which only the files for prompts are stored
QUOTA_SAVE = 60.0  # seconds between two saves of the times of last use
PROOF_CHUNKS = 3  # chunks that a claimed replica is asked for before our copy is evicted
PROOF_NETWORKS = 2  # networks with a proven replica that make a content cheap to evict
PROOF_OF_NETWORK = 2  # claimed replicas of one network that are challenged
PROOF_ASKED = 32  # claimed replicas that are dialled
PROOFS_AT_ONCE = 4  # challenges at once
PROOF_CHUNK_S = 10.0  # seconds for one chunk
PROOF_S = 20.0  # seconds for one content
PROOFS_S = 60.0  # seconds for all contents that may be evicted
SCRUB_EVERY = 30 * 86_400.0  # seconds from one scrub of all chunks to the next
SCRUB_RATE = 4 * 2**20  # bytes per second that a scrub reads
SCRUB_MEND = 600.0  # seconds until a retry to fetch damaged chunks that no peer had
SCRUB_LOOK = 60.0  # seconds between checks whether a scrub is due and the node idle
LIBRARY_LIMIT = 4 * 2**20  # bytes of library.json
PREFIX_MIN = 8  # fewest hex digits of a root that identify it

# The exchange, as a server.
MANIFEST_PIECE = 4 * 2**20  # bytes of a manifest in one reply
HAVE_RANGES = 65_536  # ranges in one reply
HAVE_AGE = 1.0  # seconds for which a reply to `blob.have` is cached
HAVE_RATE = (64, 8.0)  # `blob.have` calls of one peer: burst, and per second
SERVE_AT_ONCE = 4  # chunks read from disk at once for one peer
SERVE_WAITING = 32  # pending chunk requests of one peer; more are refused as `busy`

WATCHERS = 64  # peers that are notified of new chunks of one content
WATCHES_OF_PEER = 64  # contents of which one peer is notified
WATCH_FOR = 60.0  # seconds for which a peer is notified, unless it asks again
GIVEN_FOR = 60.0  # seconds after serving a chunk in which it is offered to other peers last
GIVEN_ROOTS = 16  # contents for which this is remembered

# The exchange, as a client. Times in seconds.
PEERS_AT_ONCE = 16  # peers that one fetch downloads from at once
FAILED_LIMIT = 2  # failed requests after which a peer that never delivered is replaced by another
REMOVED_PAUSE = (15.0, 240.0)  # until a replaced peer is tried again: first, doubled up to
IN_FLIGHT = 32  # chunks of one fetch requested or not yet stored, each 1 MiB of memory
WINDOW_START = 2  # requests in flight to a peer not yet measured
WINDOW_MAX = 8
WINDOW_SECONDS = 1.0  # of a peer's measured rate that its window covers
COPIES_MAX = 2  # peers asked for the same chunk at the end of a fetch
STEAL_FACTOR = 1.5  # hedge a chunk with a second peer that is at least this many times as fast
STEAL_AFTER = 0.1  # and not before its first request is this old
HAVE_TIMEOUT = 10.0
MANIFEST_TIMEOUT = 15.0  # one piece of a manifest, one node of a tree
ASK_BESIDE = 1.0  # without a reply, after which a piece is hedged with the next peer
ASKED_AT_ONCE = 16  # peers asked for one piece at once
MANIFESTS_AT_ONCE = 4  # multi-piece manifests in progress: 64 MiB each
CHUNK_TIMEOUT = 30.0  # a chunk from a peer not yet measured, doubled after each timeout
CHUNK_TIMEOUT_MIN = 5.0
CHUNK_TIMEOUT_MAX = 120.0
TIMEOUT_FACTOR = 8.0  # a chunk may take this many times what the measured rate predicts
RATE_MEMORY = 0.7  # weight of the old value in a peer's moving average rate
BACKOFF_START = 0.5  # after a refusal, a timeout or a lost link, doubled up to:
BACKOFF_MAX = 15.0
HAVE_REFRESH = 1.0  # until a peer is asked again what it has, doubled up to BACKOFF_MAX if no news
TICK = 0.25  # between looks for new peers and for late chunks
NEWS_CHUNKS = 256  # most chunks in one notification
NEWS_PER_S = 40  # notifications of one peer that are read per second
NEWS_PAUSE = 0.05  # for which new chunks are collected into one notification
SPARED_FOR = 3.0  # for which a chunk that a peer just gave to another is not requested from it
OFFER_STEP = 4_096  # chunks of an offer that are examined on the event loop; more go to a thread
RARE_AMONG = 64  # chunks among which the rarest is chosen
SPACE_LOOK = 5.0  # between checks whether a full disk has space again
SPACE_STEP = 32 * 2**20  # bytes (or what is left to fetch) that must be free to continue
PROVIDERS_EVERY = 30.0  # between look-ups of further providers
PROVIDERS_LIMIT = 64  # providers used
DIALS_AT_ONCE = 4  # providers dialled at once
ANNOUNCED_RUNS = 128  # most runs of indexes in an announcement: 1 KiB
PATIENCE = 120.0  # without a single new chunk, after which a fetch fails

# Records (docs/spec/records.md).
RECORD_BYTES = 2_048  # of a sealed record
RECORD_TTL = (60, 172_800)  # seconds, least and most
CLOCKS_APART = 7_200.0  # seconds that an author's wall clock and ours may differ
PEER_ADDRESSES = 8
ADDRESS_BYTES = 256  # of one address in a record
PRECISION_BYTES = 16
NAME_BYTES = 128
SALT_BYTES = 64
SLOT_BYTES = 128  # of a record of an unknown kind
KIND_BYTES = 16
PARTS = 8  # of the key of an unknown kind
SIZE_LIMIT = 2**60  # bytes of a blob or a model
BLOCKS_LIMIT = 2**20  # of a chain
BLOB_RUNS = 128  # runs of chunks that a record names
SPEED_LIMIT = 1e9  # tokens/s
SLOTS = {"peer": 1, "shard": 4, "blob": 1, "kv": 16, "name": 4}  # per author and key
SLOTS_OTHER = 4  # the same for kinds that this version does not know

# Nodes in the key space.
K = 20  # contacts of a bucket, and of an answer for one key
CONTACT_BYTES = 512  # of one contact in a message
CONTACT_ADDRESSES = 4
REGION_NODES = 20  # nodes expected in the region of a key
REGION_MOST = 96  # most nodes of a region that a record is stored at
SUBNET_FOUR, SUBNET_SIX = 24, 48  # bits of an address that count as one network
SUBNET_PER_BUCKET = 2  # contacts of one public network
SUBNET_PER_TABLE = 10
SPREAD_BITS = 4  # a full bucket is spread evenly over 2^4 parts of its range
FAILURES = 2  # in a row, after which a waiting contact replaces it; an only contact stays longer
FAILURES_LAST = 6  # in a row, after which a contact is evicted even without a replacement
REFRESH = 3_600.0  # seconds without a look-up in a bucket's range, after which one is due
SAMPLES = 15  # of the density around different keys; their median gives the network size

# Messages.
FIND_KEYS = 32  # keys of one `dht.find`
FIND_NEAR = 4  # further positions whose nearest contacts are requested
FIND_KINDS = 8
FIND_BYTES = 4_096  # of the whole message; without unknown fields it has at most 2 KiB
FIND_MOST = 64  # records per key
MESSAGE_RECORDS = 65_536  # bytes of records in one message
MESSAGE_CONTACTS = 65_536  # bytes of contacts in one reply
STORE_RECORDS = 256  # records in one `dht.store`
STORE_MESSAGE = 80 * 1_024  # bytes of a whole `dht.store`
MESSAGE_LIMIT = 160 * 1_024  # bytes of any message
AGE_LIMIT = 2 * RECORD_TTL[1]  # seconds

# The record store: records of other authors.
STORE_BYTES = 32 * 2**20  # of all records together
STORE_AUTHOR = STORE_BYTES // 8  # of one author
STORE_SUBNET = STORE_BYTES // 4  # received from one public network
STORE_KEY = 64  # records under one key
STORE_SLACK = 4.0  # accept records up to this many region radii away
LIVES = 2  # times its ttl, for which a record is stored if no later one arrives
GONE_LONGER = 2 * CLOCKS_APART  # seconds beyond its ttl for which a withdrawal is stored
ENDS_TOGETHER = 10.0  # seconds; records that expire within it are dropped together (never served)
EXPIRED_AT_ONCE = 256  # records dropped in one step, some 5 ms

# Look-ups. Times in seconds.
PATHS = 3  # disjoint: no contact is queried by two of them, no reply feeds two
PATH_ASKED = 2  # concurrent queries of a path
HEDGE = 0.7  # after which a reply counts as late, and the query is hedged
LOOKUP_QUERIES = 160  # of one look-up
LOOKUP_CONTACTS = 1_024  # that one look-up accepts
ANSWER_CONTACTS = 64  # accepted from one reply, so that no liar fills the look-up alone
WITNESSES = 8  # nodes that must have returned records of a key before the look-up may stop early
CREDIT = 2  # contacts that failed are forgiven for as many that answered
DOUBT_MOST = 4  # failures beyond that; the referrer's other contacts are skipped after `K` replies
LATE_S = (1.5, 4.0)  # wait for a late reply if no candidate is left: least, most,
LATE_FACTOR = 2.0  # in between this many times the slowest reply so far
LINKED_BITS = 2  # a linked contact counts as this many bits nearer: a new link takes 4 round trips
SUBNET_ASKED = 2  # contacts of one public network, after which other networks come first
SETTLED_ASKED = 9  # replies from a region, and
SETTLED_QUIET = 3  # replies in a row without a new node, after which the region is known
SETTLED_MOST = 30  # replies: more than a region should have, so an attacker may be inventing nodes
REGION_THIN = 0.5  # share of the expected nodes that replied, below which the look-up continues
CLOSED_QUIET = 8  # until this many replies in a row named no other node of the region

# Publication.
WALK_LOOKUPS = 10  # regions looked up at once
WALK_STORES = 64  # `dht.store` calls in flight, not counting late ones
WALK_LATE = 64  # late `dht.store` calls in flight
STORE_LATE = 1.5  # seconds after which a store counts as late and may be dropped
STORE_ENOUGH = (15, 0.7)  # replicas, or share of the nodes sent to, that allow dropping late stores
STORE_TRIES = 2  # attempts of one message to one node
STORE_PAUSE = 2.0  # seconds between them
EAGER = 4  # a walk of at most this many records first stores them at a few known nodes
EAGER_STORES = 6  # number of these nodes
PATIENT_INSIDE = 3  # replies from a region after which a background look-up dials no more nodes,
# because each reply names the 20 nodes nearest to the key
PATIENT_DIALS = 20  # of one background look-up: it must end even if every contact is unreachable
WALK_SPREAD = 1_200.0  # seconds that a background walk may take: a sixth of the life of a record
SAY_AFTER = 15.0  # seconds until a patient record is announced: a node learns its own addresses
# during its first ten seconds, and would announce each change
SAY_PAUSE = 60.0  # seconds between two announcements of a patient record
REPLICAS_LEAST = 10  # nodes that stored a record; with fewer its region is looked up again

# The service (docs/spec/dht.md). Times in seconds.
SERVERS = (8, 12)  # known reachable servers: below the first a node volunteers, from the second not
REACHED = 120.0  # for which a node stays a server after it stopped being reachable
MODE_LOOK = 5.0  # between checks of the mode of this node
BRIEF_LINKS = 64  # links open for look-ups alone
BRIEF_IDLE = 15.0  # without use, after which a link is closed: keep-alives cost both ends
BRIEF_LOOK = 5.0  # between checks for idle links
BRIEF_DIALS = 64  # concurrent dials
MET = 1_024  # peers for which the network where they answered is remembered
BRIEF_REST = 10.0  # until a peer whose dial failed is dialled again
BRIEF_RESTING = 1_024  # peers for which this is remembered
FAILED_DIALS = (16.0, 0.25)  # of one public host that peers named: burst, and per second
FINDS = (256.0, 64.0)  # `dht.find` calls of one peer: burst, and per second
FINDS_ALL = (2_048.0, 512.0)  # of all peers together
PLACES = (4_096.0, 512.0)  # keys and positions in these calls of one peer; 0.1 ms each
PLACES_ALL = (16_384.0, 4_096.0)  # of all peers together
STORES = (64.0, 16.0)  # `dht.store` calls of one peer
STORE_FAULT = 3  # further calls that a malformed one is charged as
STORES_ALL = (1_024.0, 256.0)  # of all peers together
STORED = (4_096.0, 256.0)  # records of one peer; a signature takes 0.1 ms
STORED_ALL = (16_384.0, 1_024.0)  # of all peers together
TURN = 0.005  # for which signature checks may block the event loop
ROW = 0.0005  # of small replies in a row before other tasks run
DHT_FILE_BYTES = 64 * 2**20  # of a file of contacts or own records
TTL = 7_200  # default of own records; short, as half of it should not outlive the storing nodes
AGAIN = 0.5  # share of its ttl after which a record is announced again
AGAIN_SPREAD = 0.1  # share of that by which it may be earlier, so that many go in one walk
ENOUGH_KEPT = 0.5  # share of the chosen nodes that must acknowledge a record
REPAIR_PAUSE = (2.0, 300.0)  # until a retry after too few did: first, most; doubled in between
RECORDS_PAUSE = 5.0  # between two writes of own records
CONTACTS_PAUSE = 60.0  # between two writes of contacts
JOIN_PAUSE = (1.0, 15.0)  # between two attempts to find a first peer: least, most
REMEMBERED = 256  # contacts of the last run that are tried at the start
BOOTSTRAP_AT_ONCE = 4  # of these at once; low, as a daemon is usually linked to its members already
FIND_S = 4.0  # for a reply to `dht.find`, once there is a link
STORE_S = 8.0  # the same for `dht.store`: the peer checks signatures meanwhile
PROBES = 64  # linked peers waiting to be asked whether they serve
PROBES_AT_ONCE = 8
PROBE_PAUSE = 60.0  # until a peer that did not serve is asked again
CHECK_QUIET = 300.0  # of silence after which a contact is pinged, if another waits for its slot
START = 20  # contacts of the table that a look-up begins with
SURVEY_AFTER = 60.0  # seconds from the first contact to the first background look-up: links of the
# first minute bring most contacts, and each reply of a look-up has some kB
REFRESH_LOOK = 20.0  # between checks which buckets are due
FIND_S_ALL = 10.0  # for a whole request of the application
WALKS = 4  # at once
LOOKUPS = 8  # of one request of the application at once
OWN_LOOK = 900.0  # between two look-ups of this node's own key

# Names of models.
NAME_FIND = 8.0  # seconds to look for members that vouch for a name
NAME_ENOUGH = 16  # vouchers after which the search stops
NAME_MEANINGS = 32  # roots considered for one name
NAME_CHOICES = 4  # roots listed in a message

# The index of KV (docs/spec/kv.md). Times in seconds.
KV_BLOCK = 16  # tokens of a block
KV_CHAIN = 2**18  # blocks of a chain: three requests find a prefix of it
KV_SECRET = (16, 64)  # bytes of a group's secret, least and most
KV_CHAINS = 4_096  # stored here
KV_BLOCKS = 2**17  # of all chains stored here: some 60 MB at most
KV_ASKED = 64  # blocks in one `kv.have`
KV_PROVIDERS = 16  # providers asked how long their prefix is
KV_ANSWER = 4.0  # for one reply
KV_FIND = 8.0  # for the look-up, and as much for the requests
KV_RATE = (64.0, 16.0)  # requests of one peer: burst, and per second
KV_RATE_ALL = (1_024.0, 256.0)  # of all peers together
KV_TTL = 600  # of its records: caches are short-lived
KV_SAID = 8  # keys published together; then a pause of
KV_SAY_PAUSE = 1.0
KV_DISTRUST = 3_600.0  # for which a peer that lied is not asked
KV_LIARS = 1_024  # lying peers remembered
