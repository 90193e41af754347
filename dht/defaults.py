"""Every constant of the package, with its unit."""

CHUNK = 2**20  # bytes of every chunk but an object's last one

# Limits of a manifest (docs/spec/model.md). Each is checked before memory is taken for it.
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

# The store.
DISK_RESERVE = 128 * 2**20  # bytes always left free on the disk
VERIFIED_FOR = 600.0  # seconds for which a file this process verified is served without a look
VERIFIED_LIMIT = 65_536  # files of which that is remembered
STORED_AT_ONCE = 2  # threads that verify and store what comes in a fetch,
STORED_TOGETHER = 8  # and chunks that one of them takes at once where as many wait
SETTLE_CHUNKS = 64  # chunks of a fetch are made durable together once there are so many,
SETTLE_AFTER = 5.0  # or after so many seconds
TREES_KEPT = 16  # trees of blobs held in memory
DISK_SHARE = 0.5  # of what is free or used by the library, where the owner sets no limit,
DISK_MOST = 100 * 2**30  # bytes, at most so much,
DISK_KEPT = (0.05, 2**30)  # a share of both, or bytes if these are more, which stay free
FILES_MOST = 256 * 2**20  # bytes of models of which only what prompts need is here
QUOTA_SAVE = 60.0  # seconds between two saves of when things were used
PROOF_CHUNKS = 3  # of a content that may go, that who says to hold it is asked for
PROOF_NETWORKS = 2  # in which others hold it, then it goes before what fewer hold
PROOF_OF_NETWORK = 2  # of one network that are asked
PROOF_ASKED = 32  # of those who say to hold it, that are dialled,
PROOFS_AT_ONCE = 4  # so many at once
PROOF_CHUNK_S = 10.0  # for one chunk
PROOF_S = 20.0  # for one content,
PROOFS_S = 60.0  # and for all that may go
SCRUB_EVERY = 30 * 86_400.0  # seconds from one look at every chunk to the next
SCRUB_RATE = 4 * 2**20  # bytes per second that it reads
SCRUB_MEND = 600.0  # seconds until what nobody had is asked for again
SCRUB_LOOK = 60.0  # seconds until it looks again whether it is time, or the node idle
LIBRARY_LIMIT = 4 * 2**20  # bytes of library.json
PREFIX_MIN = 8  # hex digits of a root that name it

# The exchange, as a server.
MANIFEST_PIECE = 4 * 2**20  # bytes of a manifest in one reply
HAVE_RANGES = 65_536  # ranges in one reply
HAVE_AGE = 1.0  # seconds for which an answer to `blob.have` is given again
HAVE_RATE = (64, 8.0)  # such questions of one peer that are answered: at once, and per second
SERVE_AT_ONCE = 4  # chunks read from disk at once for one peer
SERVE_WAITING = 32  # chunk requests of one peer held at once; more are refused as `busy`

WATCHERS = 64  # peers that are told of what comes in of one content
WATCHES_OF_PEER = 64  # contents of which one peer is told
WATCH_FOR = 60.0  # seconds for which it is, unless it asks again
GIVEN_FOR = 60.0  # seconds in which a chunk given to one peer is not given to another first
GIVEN_ROOTS = 16  # contents of which that is remembered

# The exchange, as a getter. Times in seconds.
PEERS_AT_ONCE = 16  # peers that one fetch draws from at once
VAIN_LIMIT = 2  # askings in vain, then one that never delivered makes room for another
REMOVED_PAUSE = (15.0, 240.0)  # until one that made room is asked again: first, doubled up to
IN_FLIGHT = 32  # chunks of one fetch asked for or not yet stored, so MiB of memory
WINDOW_START = 2  # requests in flight to a peer not yet measured
WINDOW_MAX = 8
WINDOW_SECONDS = 1.0  # of a peer's measured rate that its window covers
COPIES_MAX = 2  # peers asked for one chunk at the end of a fetch
STEAL_FACTOR = 1.5  # a chunk is asked again where that is this many times as fast
STEAL_AFTER = 0.1  # and its first asking is older than this
HAVE_TIMEOUT = 10.0
MANIFEST_TIMEOUT = 15.0  # one piece of a manifest, one node of a tree
ASK_BESIDE = 1.0  # without an answer, then the next peer is asked for one of these as well,
ASKED_AT_ONCE = 16  # and so many at most
MANIFESTS_AT_ONCE = 4  # that come in several pieces: 64 MiB each
CHUNK_TIMEOUT = 30.0  # a chunk from a peer not yet measured, doubled after each timeout
CHUNK_TIMEOUT_MIN = 5.0
CHUNK_TIMEOUT_MAX = 120.0
TIMEOUT_FACTOR = 8.0  # a chunk may take this many times what the measured rate says
RATE_MEMORY = 0.7  # weight of the old value when a peer's rate is measured again
BACKOFF_START = 0.5  # after a refusal, a timeout or a lost link, doubled up to:
BACKOFF_MAX = 15.0
HAVE_REFRESH = 1.0  # asks a peer again what it has, doubled up to BACKOFF_MAX without news
TICK = 0.25  # looks for new peers and for late chunks
NEWS_CHUNKS = 256  # chunks that one piece of news names at most
NEWS_PER_S = 40  # pieces of news of one peer that are read in a second
NEWS_PAUSE = 0.05  # what came in so long is told at once
SPARED_FOR = 3.0  # what a peer gave to another just now is not asked of it again
OFFER_STEP = 4_096  # chunks of an offer that are looked at in one step; more are in a thread
RARE_AMONG = 64  # chunks among which the rarest is chosen
SPACE_LOOK = 5.0  # between two looks whether the disk has room again
SPACE_STEP = 32 * 2**20  # bytes, or what is left, that must be free then
PROVIDERS_EVERY = 30.0  # asks who else holds it
PROVIDERS_LIMIT = 64  # of them
DIALS_AT_ONCE = 4  # of those
ANNOUNCED_RUNS = 128  # runs of indexes that an announcement holds at most: 1 KiB
PATIENCE = 120.0  # without a single new chunk, then a fetch fails

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
SLOTS = {"peer": 1, "shard": 4, "blob": 1, "kv": 16, "name": 4}  # of one author under one key
SLOTS_OTHER = 4  # the same for kinds that this version does not know

# Nodes in the key space.
K = 20  # contacts of a bucket, and of an answer for one key
CONTACT_BYTES = 512  # of one contact in a message
CONTACT_ADDRESSES = 4
REGION_NODES = 20  # nodes expected in the region of a key
REGION_MOST = 96  # nodes of a region that are stored to, at most
SUBNET_FOUR, SUBNET_SIX = 24, 48  # bits of an address that count as one network
SUBNET_PER_BUCKET = 2  # contacts of one public network
SUBNET_PER_TABLE = 10
SPREAD_BITS = 4  # a full bucket is held even over 2^4 parts of its range
FAILURES = 2  # in a row, then a contact makes room for another; one that is alone stays longer
FAILURES_LAST = 6  # in a row, then it goes even if nobody takes its place
REFRESH = 3_600.0  # seconds without a look-up in a bucket's range, then one is due
SAMPLES = 15  # of the density around different keys, whose median is the size of the network

# Messages.
FIND_KEYS = 32  # keys of one `dht.find`
FIND_NEAR = 4  # places besides whose nearest contacts are asked for
FIND_KINDS = 8
FIND_BYTES = 4_096  # of the whole message: one without further fields has at most 2 KiB
FIND_MOST = 64  # records a key
MESSAGE_RECORDS = 65_536  # bytes of records in one message
MESSAGE_CONTACTS = 65_536  # bytes of contacts in one answer
STORE_RECORDS = 256  # records in one `dht.store`
STORE_MESSAGE = 80 * 1_024  # bytes of the whole of it
MESSAGE_LIMIT = 160 * 1_024  # bytes of any message
AGE_LIMIT = 2 * RECORD_TTL[1]  # seconds

# Records of others.
STORE_BYTES = 32 * 2**20  # of all together
STORE_AUTHOR = STORE_BYTES // 8  # of one author
STORE_SUBNET = STORE_BYTES // 4  # of those who sent them from one public network
STORE_KEY = 64  # records under one key
STORE_SLACK = 4.0  # a record is taken up to so many times the radius of a region away
LIVES = 2  # times its ttl, that a record is kept without a later one
GONE_LONGER = 2 * CLOCKS_APART  # seconds beyond its ttl that a withdrawal is kept
ENDS_TOGETHER = 10.0  # seconds in which what ends is dropped together; found it is no more
EXPIRED_AT_ONCE = 256  # of those that end together, some 5 ms

# Look-ups. Times in seconds.
PATHS = 3  # disjoint: no contact is asked by two of them, no answer feeds two
PATH_ASKED = 2  # queries of a path at once
HEDGE = 0.7  # after which an answer counts as late, and another is asked beside it
LOOKUP_QUERIES = 160  # of one look-up
LOOKUP_CONTACTS = 1_024  # that one look-up hears of
ANSWER_CONTACTS = 64  # of them from one answer, so that no liar fills the look-up with its own
WITNESSES = 8  # that have handed out records of a key, before enough authors are enough
CREDIT = 2  # contacts named in vain, that as many named well make up for
DOUBT_MOST = 4  # named in vain beyond that, then the others are left once `K` have answered
LATE_S = (1.5, 4.0)  # an answer is waited for when nobody else is left to ask: least, most,
LATE_FACTOR = 2.0  # and in between so many times as long as the slowest so far took
LINKED_BITS = 2  # a linked contact counts as so many bits nearer: a link costs four round trips
SUBNET_ASKED = 2  # contacts of one public network, then those of others come first
SETTLED_ASKED = 9  # nodes of a region that answered, and
SETTLED_QUIET = 3  # answers in a row without a new one: then its nodes are known
SETTLED_MOST = 30  # that answered: more than there should be; somebody makes them up
REGION_THIN = 0.5  # of the nodes expected have answered: fewer, and the look-up goes on, as
CLOSED_QUIET = 8  # it does until so many answers in a row named no other node of the region

# Publication.
WALK_LOOKUPS = 10  # regions looked up at once
WALK_STORES = 64  # `dht.store` under way at once, late ones aside
WALK_LATE = 64  # of those
STORE_LATE = 1.5  # seconds after which a store counts as late: with enough others it can be left
STORE_ENOUGH = (15, 0.7)  # enough: nodes, or this share of those that were sent the record
STORE_TRIES = 2  # of one message to one node
STORE_PAUSE = 2.0  # seconds between them
EAGER = 4  # records, up to which some nodes that are known get them before all are
EAGER_STORES = 6  # such nodes
PATIENT_INSIDE = 3  # nodes of a region that answered; then a background look-up dials no more of
# them, because each names the 20 nodes nearest to the key
PATIENT_DIALS = 20  # of one background look-up: it must end while all contacts are out of reach
WALK_SPREAD = 1_200.0  # seconds that a background walk may take: a sixth of the life of a record
SAY_AFTER = 15.0  # seconds until a patient record is announced: a node learns its own addresses
# during its first ten seconds, and would announce each change
SAY_PAUSE = 60.0  # seconds between two announcements of a patient record
REPLICAS_LEAST = 10  # nodes that keep a record, else its region is looked up again

# The service (docs/spec/dht.md). Times in seconds.
SERVERS = (8, 12)  # reachable ones known: under the first a node steps in, from the second no more
REACHED = 120.0  # for which a server stays one that was found reachable no more
MODE_LOOK = 5.0  # between two looks at what this node is to others
BRIEF_LINKS = 64  # links for look-ups alone
BRIEF_IDLE = 15.0  # without use, then one is ended: it costs signs of life at both ends
BRIEF_LOOK = 5.0  # between two looks at their use
BRIEF_DIALS = 64  # at once
MET = 1_024  # who answered, of whom is remembered where
BRIEF_REST = 10.0  # until who was dialled in vain is dialled again
BRIEF_RESTING = 1_024  # of whom that is remembered
KNOCKS = (16.0, 0.25)  # dials in vain of one public host that others named, at once and per second
FINDS = (256.0, 64.0)  # `dht.find` of one peer taken at once, and per second
FINDS_ALL = (2_048.0, 512.0)  # of all together
PLACES = (4_096.0, 512.0)  # keys and places of such questions of one peer; 0.1 ms each
PLACES_ALL = (16_384.0, 4_096.0)  # of all together
STORES = (64.0, 16.0)  # `dht.store` of one peer
STORE_FAULT = 3  # further ones for which one counts that is no message
STORES_ALL = (1_024.0, 256.0)  # of all together
STORED = (4_096.0, 256.0)  # records of one peer; a signature takes 0.1 ms
STORED_ALL = (16_384.0, 1_024.0)  # of all together
TURN = 0.005  # that checking signatures may hold the event loop
ROW = 0.0005  # of small answers one after the other before others run
SHELF_BYTES = 64 * 2**20  # of a file of contacts or own records
TTL = 7_200  # of own records, where nothing else is said: half of it must not outlive the keepers
AGAIN = 0.5  # of its ttl, after which a record is announced again
AGAIN_SPREAD = 0.1  # of that, by which it may be earlier: many go in one walk
ENOUGH_KEPT = 0.5  # of the nodes that should keep a record, that acknowledge it
REPAIR_PAUSE = (2.0, 300.0)  # after too few did: first, most; doubled in between
SHELVE_PAUSE = 5.0  # between two writes of own records
CONTACTS_PAUSE = 60.0  # between two writes of contacts
JOIN_PAUSE = (1.0, 15.0)  # between two tries to find anybody: first, most
REMEMBERED = 256  # contacts of the last run that are asked to come back
KNOCKS_AT_ONCE = 4  # of these, in a daemon: its members' links are there first, as a rule
FIND_S = 4.0  # for an answer to `dht.find`, once there is a link
STORE_S = 8.0  # the same for `dht.store`: signatures are checked meanwhile
CURIOUS = 64  # peers at once of whom is to be found out whether they serve
CURIOUS_AT_ONCE = 8
CURIOUS_REST = 60.0  # until one that did not serve is asked again
CHECK_QUIET = 300.0  # a contact not heard for so long is asked, where others wait for its place
START = 20  # contacts of the table that a look-up begins with
SURVEY_AFTER = 60.0  # seconds from the first contact to the first background look-up: links of the
# first minute bring most contacts, and each answer of a look-up has some kB
REFRESH_LOOK = 20.0  # between two looks at which buckets are due
FIND_S_ALL = 10.0  # for all that one asking of the application may take
WALKS = 4  # at once
LOOKUPS = 8  # of one asking of the application at once
OWN_LOOK = 900.0  # between two look-ups of the own surroundings

# Names of models.
NAME_FIND = 8.0  # seconds to look for who vouches
NAME_ENOUGH = 16  # vouchers after which no more are looked for
NAME_MEANINGS = 32  # roots that one name is said to mean
NAME_CHOICES = 4  # of them that a message names

# The index of KV (docs/spec/kv.md). Times in seconds.
KV_BLOCK = 16  # tokens of a block
KV_CHAIN = 2**18  # blocks of a chain: three questions find a prefix of it
KV_SECRET = (16, 64)  # bytes of a group's secret, least and most
KV_CHAINS = 4_096  # held here
KV_BLOCKS = 2**17  # of all chains held here: some 60 MB at most
KV_ASKED = 64  # blocks in one `kv.have`
KV_HOLDERS = 16  # asked how far they go
KV_ANSWER = 4.0  # for one answer
KV_FIND = 8.0  # for the look-up, and as much for the questions
KV_RATE = (64.0, 16.0)  # questions of one peer answered at once, and per second
KV_RATE_ALL = (1_024.0, 256.0)  # of all together
KV_TTL = 600  # of its records: a cache lives shortly
KV_SAID = 8  # keys published at once, and then a
KV_SAY_PAUSE = 1.0
KV_DISTRUST = 3_600.0  # for which who lied is not asked
KV_LIARS = 1_024  # of whom that is remembered
