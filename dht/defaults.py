"""All constants of the package. The comments give the units."""

CHUNK = 2**20  # bytes of a chunk; the last chunk of an object may be smaller

# Limits of a manifest (docs/spec/model.md). Each is checked before memory is allocated.
MANIFEST_LIMIT = 64 * 2**20  # bytes of an encoded manifest
CONFIG_LIMIT = 2**20  # bytes of a config.json
CONFIG_DEPTH = 32  # most nested containers in a config.json
TENSORS_LIMIT = 131_072  # tensors of a model (a 61-layer, 256-expert one has 47,000)
LAYERS_LIMIT = 1_024
ROLES_LIMIT = 2  # names of one tensor
DIMS_LIMIT = 8  # dimensions of a tensor
DIM_LIMIT = 2**31  # values along one dimension
CHUNKS_LIMIT = 2_000_000  # chunks of one object (2 TB)
ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I8": 1, "U8": 1}  # the dtypes a model may have

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
VERIFIED_LIMIT = 65_536  # verified files that are remembered
STORED_AT_ONCE = 2  # threads of one fetch that verify and store chunks
STORED_TOGETHER = 8  # most waiting chunks that such a thread stores in one call
SETTLE_CHUNKS = 64  # number of staged chunks that are then made durable together
SETTLE_AFTER = 5.0  # seconds after which staged chunks are made durable even if they are fewer
TREES_KEPT = 16  # trees of blobs cached in memory
# The default quota, if the owner sets none, is a share of the bytes of the disk that are free or
# used by the library.
DISK_SHARE = 0.5
DISK_MOST = 100 * 2**30  # bytes, the most that this quota may be
DISK_KEPT = (0.05, 2**30)  # must stay free: a share of the same bytes, and at least this many bytes
FILES_MOST = 256 * 2**20  # bytes of all models that are stored only to build prompts
QUOTA_SAVE = 60.0  # seconds between two saves of the times of last use
PROOF_CHUNKS = 3  # chunks that a peer must send to prove its replica, before ours is evicted
PROOF_NETWORKS = 2  # networks with a proven replica that are enough to evict a content first
PROOF_OF_NETWORK = 2  # peers of one network that are challenged
PROOF_ASKED = 32  # peers that are dialled for the proof of one content
PROOFS_AT_ONCE = 4  # peers that are challenged at the same time
PROOF_CHUNK_S = 10.0  # seconds for one chunk
PROOF_S = 20.0  # seconds for one content
PROOFS_S = 60.0  # seconds for all contents that may be evicted
SCRUB_EVERY = 30 * 86_400.0  # seconds from one scrub of all chunks to the next
SCRUB_RATE = 4 * 2**20  # bytes per second that a scrub reads
SCRUB_MEND = 600.0  # seconds until a retry to fetch damaged chunks that no peer had
SCRUB_LOOK = 60.0  # seconds between checks whether a scrub is due and whether the node is idle
LIBRARY_LIMIT = 4 * 2**20  # bytes of library.json
PREFIX_MIN = 8  # least number of hex digits that identify a root without a name

# The exchange, as a server.
MANIFEST_PIECE = 4 * 2**20  # bytes of a manifest in one reply
HAVE_RANGES = 65_536  # ranges in one reply
HAVE_AGE = 1.0  # seconds for which a reply to `blob.have` is cached
HAVE_RATE = (64, 8.0)  # `blob.have` calls of one peer: burst, and calls per second
SERVE_AT_ONCE = 4  # chunks read from disk at once for one peer
SERVE_WAITING = 32  # pending chunk requests of one peer; more are refused as `busy`

WATCHERS = 64  # peers that are notified of new chunks of one content
WATCHES_OF_PEER = 64  # contents of which one peer is notified
WATCH_FOR = 60.0  # seconds for which a peer is notified, after its last request for it
GIVEN_FOR = 60.0  # seconds after sending a chunk in which other peers should request other chunks
GIVEN_ROOTS = 16  # contents for which this node remembers which peer received which chunk

# The exchange, as a client. Times in seconds.
PEERS_AT_ONCE = 16  # peers that one fetch downloads from at once
FAILED_LIMIT = 2  # failed requests after which a peer that never delivered is replaced by another
REMOVED_PAUSE = (15.0, 240.0)  # until a replaced peer is tried again: first, most; doubles
IN_FLIGHT = 32  # chunks of one fetch requested or not yet stored, each 1 MiB of memory
WINDOW_START = 2  # requests in flight to a peer not yet measured
WINDOW_MAX = 8
WINDOW_SECONDS = 1.0  # pending requests to a peer cover this many seconds of its measured rate
COPIES_MAX = 2  # peers that are asked for the same chunk at the end of a fetch
STEAL_FACTOR = 1.5  # hedge a chunk with a second peer that is at least this many times as fast
STEAL_AFTER = 0.1  # age of a request before which it is not hedged
HAVE_TIMEOUT = 10.0
MANIFEST_TIMEOUT = 15.0  # for one piece of a manifest, or one node of a tree
ASK_BESIDE = 1.0  # without a reply, after which the request is hedged with the next peer
ASKED_AT_ONCE = 16  # peers that are asked for one object at the same time
MANIFESTS_AT_ONCE = 4  # manifests of several pieces that are fetched at once: up to 64 MiB each
CHUNK_TIMEOUT = 30.0  # for a chunk from a peer not yet measured; doubled after each failure
CHUNK_TIMEOUT_MIN = 5.0
CHUNK_TIMEOUT_MAX = 120.0
TIMEOUT_FACTOR = 8.0  # a chunk may take this many times as long as the measured rate predicts
RATE_MEMORY = 0.7  # weight of the old value in a peer's moving average rate
BACKOFF_START = 0.5  # pause after a refusal, a timeout or a lost link; doubled up to `BACKOFF_MAX`
BACKOFF_MAX = 15.0
HAVE_REFRESH = 1.0  # until a peer is asked again what it has; doubles to `BACKOFF_MAX` at most
TICK = 0.25  # between looks for new peers and for late chunks
NEWS_CHUNKS = 256  # most chunks in one notification
NEWS_PER_S = 40  # notifications of one peer that are read per second
NEWS_PAUSE = 0.05  # for which new chunks are collected for one notification
SPARED_FOR = 3.0  # for which a chunk is not requested from a peer that just gave it to another
OFFER_STEP = 4_096  # chunks of an offer that are examined on the event loop; more go to a thread
RARE_AMONG = 64  # chunks among which the rarest is chosen
SPACE_LOOK = 5.0  # between checks whether a full disk has space again
SPACE_STEP = 32 * 2**20  # bytes (or what is left to fetch) that must be free to continue
PROVIDERS_EVERY = 30.0  # between look-ups of further providers
PROVIDERS_LIMIT = 64  # providers used
DIALS_AT_ONCE = 4  # providers dialled at once
ANNOUNCED_RUNS = 128  # most runs of indexes in an announcement: 1 KiB
PATIENCE = 120.0  # without a new chunk, after which a fetch fails

# Records (docs/spec/records.md).
RECORD_BYTES = 2_048  # of a sealed record
RECORD_TTL = (60, 172_800)  # seconds, least and most
CLOCKS_APART = 7_200.0  # seconds that an author's wall clock and ours may differ
PEER_ADDRESSES = 8
ADDRESS_BYTES = 256  # of one address in a record
PRECISION_BYTES = 16
NAME_BYTES = 128
SALT_BYTES = 64
SLOT_BYTES = 128  # of the slot of a record of an unknown kind
KIND_BYTES = 16
PARTS = 8  # most parts of the key of a record of an unknown kind
SIZE_LIMIT = 2**60  # bytes of a blob or a model
BLOCKS_LIMIT = 2**20  # blocks of a chain in a record
BLOB_RUNS = 128  # most runs of chunks in a record
SPEED_LIMIT = 1e9  # tokens/s
# Most records of one author under one key, by kind, and for kinds that this version does not know.
SLOTS = {"peer": 1, "shard": 4, "blob": 1, "kv": 16, "name": 4}
SLOTS_OTHER = 4

# Nodes in the key space.
K = 20  # contacts of a bucket, and of an answer for one key
CONTACT_BYTES = 512  # of one contact in a message
CONTACT_ADDRESSES = 4
REGION_NODES = 20  # nodes expected in the region of a key, which should store its records
REGION_MOST = 96  # most nodes of a region that a record is stored at
SUBNET_FOUR, SUBNET_SIX = 24, 48  # bits of an IPv4 and an IPv6 address that name its network
SUBNET_PER_BUCKET = 2  # contacts of one public network in one bucket
SUBNET_PER_TABLE = 10  # contacts of one public network in the table
SPREAD_BITS = 4  # a full bucket is spread evenly over 2^4 parts of its range
FAILURES = 2  # in a row, after which a contact is evicted if another waits for its place
FAILURES_LAST = 6  # in a row, after which a contact is evicted even if none waits
REFRESH = 3_600.0  # seconds without a look-up in a bucket's range, after which one is due
SAMPLES = 15  # estimates of the density around different keys; their median gives the network size

# Messages.
FIND_KEYS = 32  # keys of one `dht.find`
FIND_NEAR = 4  # positions in one `dht.find` whose nearest contacts are requested
FIND_KINDS = 8  # kinds of records in one `dht.find`
FIND_BYTES = 4_096  # of a whole `dht.find`; without unknown fields it has at most 2 KiB
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
LIVES = 2  # times its ttl for which a record is stored at most, if no later one arrives
GONE_LONGER = 2 * CLOCKS_APART  # seconds beyond its ttl for which a withdrawal is stored
ENDS_TOGETHER = 10.0  # seconds; expired records are never served, and removed in steps of this time
EXPIRED_AT_ONCE = 256  # records dropped in one step, some 5 ms

# Look-ups. Times in seconds.
PATHS = 3  # disjoint: each contact and each reply belongs to one path only
PATH_ASKED = 2  # concurrent queries of a path
HEDGE = 0.7  # after which a reply counts as late, and another contact is queried as well
LOOKUP_QUERIES = 160  # of one look-up
LOOKUP_CONTACTS = 1_024  # candidates of one look-up
ANSWER_CONTACTS = 64  # candidates accepted from one reply, so that one liar cannot fill the look-up
WITNESSES = 8  # most nodes that must have returned records of a key before a look-up may stop early
CREDIT = 2  # failed contacts forgiven to a referrer: one for each that answered, but at most these
DOUBT_MOST = 4  # unforgiven failures after which its contacts are skipped once `K` nodes replied
LATE_S = (1.5, 4.0)  # for which a late reply is awaited if no candidate is left: least, most
LATE_FACTOR = 2.0  # between these limits, this many times as long as the slowest reply took
LINKED_BITS = 2  # by which a linked contact counts as nearer: a new link takes 4 round trips
SUBNET_ASKED = 2  # queries into one public network, after which other networks come first
# A region is known after SETTLED_ASKED replies, if SETTLED_QUIET in a row named no new node.
SETTLED_ASKED = 9
SETTLED_QUIET = 3
SETTLED_MOST = 30  # replies after which it counts as known anyway, as an attacker may invent nodes
REGION_THIN = 0.5  # share of the expected nodes that replied, below which the look-up continues
CLOSED_QUIET = 8  # replies in a row without a new node of the region, after which it then ends

# Publication.
WALK_LOOKUPS = 10  # regions looked up at once
WALK_STORES = 64  # `dht.store` calls in flight, not counting late ones
WALK_LATE = 64  # late `dht.store` calls in flight
STORE_LATE = 1.5  # seconds after which a store counts as late and may be dropped
STORE_ENOUGH = (15, 0.7)  # replicas, or share of the chosen nodes, that allow dropping late stores
STORE_TRIES = 2  # attempts of one message to one node
STORE_PAUSE = 2.0  # seconds between them
EAGER = 4  # most records of a walk that first stores them at a few known nodes
EAGER_STORES = 6  # number of these nodes
PATIENT_INSIDE = 3  # replies from a region after which a background look-up dials no more nodes,
# because each reply names the 20 nodes nearest to the key
PATIENT_DIALS = 20  # dials of a background look-up: it must end even if no contact is reachable
WALK_SPREAD = 1_200.0  # seconds that a background walk may take: a sixth of the default ttl
SAY_AFTER = 15.0  # seconds until a patient record is announced: a node learns its own addresses
# during its first ten seconds, and would announce each change
SAY_PAUSE = 60.0  # seconds between two announcements of a patient record
REPLICAS_LEAST = 10  # replicas; if a record has fewer, its region is looked up again

# The service (docs/spec/dht.md). Times in seconds.
# Known reachable servers: with fewer than the first number, a client begins to serve as a fallback.
# With as many as the second, a fallback server becomes a client.
SERVERS = (8, 12)
REACHED = 120.0  # for which a node stays a server after it was last reachable
MODE_LOOK = 5.0  # between checks of the mode of this node
BRIEF_LINKS = 64  # most open links that only the DHT uses
BRIEF_IDLE = 15.0  # without use, after which such a link is closed: keep-alives cost both ends
BRIEF_LOOK = 5.0  # between checks for idle links
BRIEF_DIALS = 64  # concurrent dials
MET = 1_024  # peers whose network is remembered from their last reply
BRIEF_REST = 10.0  # until a peer whose dial failed is dialled again
BRIEF_RESTING = 1_024  # peers whose last failed dial or probe is remembered
FAILED_DIALS = (16.0, 0.25)  # to one public host that peers named: burst, and dials per second
FINDS = (256.0, 64.0)  # `dht.find` calls of one peer: burst, and calls per second
FINDS_ALL = (2_048.0, 512.0)  # of all peers together
PLACES = (4_096.0, 512.0)  # keys and positions in `dht.find` calls of one peer; each takes 0.1 ms
PLACES_ALL = (16_384.0, 4_096.0)  # of all peers together
STORES = (64.0, 16.0)  # `dht.store` calls of one peer
STORE_FAULT = 3  # calls that a malformed call counts as, in addition to itself
STORES_ALL = (1_024.0, 256.0)  # of all peers together
STORED = (4_096.0, 256.0)  # records of one peer; a signature takes 0.1 ms
STORED_ALL = (16_384.0, 1_024.0)  # of all peers together
TURN = 0.005  # for which signature checks may run before other tasks run
ROW = 0.0005  # for which small requests may be answered before other tasks run
DHT_FILE_BYTES = 64 * 2**20  # of a file of contacts or own records
TTL = 7_200  # default ttl of own records: short, because the nodes that store them leave
AGAIN = 0.5  # share of its ttl after which a record is announced again
AGAIN_SPREAD = 0.1  # share of this time by which it may be earlier, to share a walk with others
ENOUGH_KEPT = 0.5  # share of the chosen nodes that must acknowledge a record
REPAIR_PAUSE = (2.0, 300.0)  # until a retry if too few nodes acknowledged: first, most; doubles
RECORDS_PAUSE = 5.0  # between two writes of own records
CONTACTS_PAUSE = 60.0  # between two writes of contacts
JOIN_PAUSE = (1.0, 15.0)  # between two attempts to find a first peer: least, most
REMEMBERED = 256  # contacts of the last run that are tried at the start
BOOTSTRAP_AT_ONCE = 4  # of these at once; few, as a daemon is usually already linked to members
FIND_S = 4.0  # for a reply to `dht.find`, not counting the dial
STORE_S = 8.0  # the same for `dht.store`; longer, because the peer verifies signatures first
PROBES = 64  # linked peers that wait for a probe, which shows whether they serve
PROBES_AT_ONCE = 8  # concurrent probes
PROBE_PAUSE = 60.0  # until a peer that does not serve is probed again
CHECK_QUIET = 300.0  # of silence after which a contact is pinged, if another waits for its slot
START = 20  # contacts of the table that a look-up begins with
SURVEY_AFTER = 60.0  # seconds from the first contact to the first background look-up: links of the
# first minute bring most contacts, and each reply of a look-up has some kB
REFRESH_LOOK = 20.0  # between checks whether a bucket is due
FIND_S_ALL = 10.0  # for the look-ups of one request of the application
WALKS = 4  # concurrent walks
LOOKUPS = 8  # concurrent look-ups of one request of the application
OWN_LOOK = 900.0  # between two look-ups of this node's own key

# Names of models.
NAME_FIND = 8.0  # seconds to look in the DHT for nodes that vouch for a name
NAME_ENOUGH = 16  # vouchers after which the search stops
NAME_MEANINGS = 32  # roots considered for one name
NAME_CHOICES = 4  # roots listed in a message

# The index of KV (docs/spec/kv.md). Times in seconds.
KV_CHAIN = 2**16  # most chunks of a chain, 2^24 positions; three requests find a prefix of it
KV_CHAINS = 4_096  # most chains in this node's index
KV_CHUNKS = 2**14  # most chunks of these chains, in some 8 MB
KV_ASKED = 64  # chunks in one `kv.have`
KV_PROVIDERS = 16  # providers asked how long their prefix is
KV_ANSWER = 4.0  # for one reply
KV_FIND = 8.0  # for the look-up, and again for the requests
KV_RATE = (64.0, 16.0)  # `kv.have` calls of one peer: burst, and calls per second
KV_RATE_ALL = (1_024.0, 256.0)  # of all peers together
KV_TTL = 600  # ttl of KV records, because caches are short-lived
KV_SAID = 8  # keys whose records are published together
KV_SAY_PAUSE = 1.0  # between two such publications
KV_DISTRUST = 3_600.0  # for which a peer that lied is not asked
KV_LIARS = 1_024  # lying peers remembered
