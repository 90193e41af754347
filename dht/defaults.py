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
SETTLE_CHUNKS = 32  # chunks of a fetch are made durable together once there are so many,
SETTLE_AFTER = 5.0  # or after so many seconds
TREES_KEPT = 16  # trees of blobs held in memory
QUOTA_SAVE = 60.0  # seconds between two saves of when things were used
SCRUB_EVERY = 30 * 86_400.0  # seconds from one look at every chunk to the next
SCRUB_RATE = 4 * 2**20  # bytes per second that it reads
SCRUB_LOOK = 60.0  # seconds until it looks again whether it is time, or the node idle
LIBRARY_LIMIT = 4 * 2**20  # bytes of library.json
PREFIX_MIN = 8  # hex digits of a root that name it

# The exchange, as a server.
MANIFEST_PIECE = 4 * 2**20  # bytes of a manifest in one reply
HAVE_RANGES = 65_536  # ranges in one reply
HAVE_AGE = 1.0  # seconds for which an answer to `blob.have` is given again
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
IN_FLIGHT = 32  # chunk requests of one fetch at once, so MiB of memory
WINDOW_START = 2  # requests in flight to a peer not yet measured
WINDOW_MAX = 8
WINDOW_SECONDS = 1.0  # of a peer's measured rate that its window covers
COPIES_MAX = 2  # peers asked for one chunk at the end of a fetch
STEAL_FACTOR = 1.5  # a chunk is asked again where that is this many times as fast
STEAL_AFTER = 0.1  # and its first asking is older than this
HAVE_TIMEOUT = 10.0
MANIFEST_TIMEOUT = 15.0  # one piece of a manifest
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
RARE_AMONG = 64  # chunks among which the rarest is chosen
SPACE_LOOK = 5.0  # between two looks whether the disk has room again
SPACE_STEP = 32 * 2**20  # bytes, or what is left, that must be free then
PROVIDERS_EVERY = 30.0  # asks who else holds it
PROVIDERS_LIMIT = 64  # of them
DIALS_AT_ONCE = 4  # of those
ANNOUNCED_RUNS = 128  # runs of indexes that an announcement holds at most: 1 KiB
PATIENCE = 120.0  # without a single new chunk, then a fetch fails
