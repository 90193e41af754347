"""Constants of this package, with their units."""

# A record: docs/spec/membership.md. A full one within these bounds is under RECORD_BYTES.
RECORD_BYTES = 64 * 2**10
MAX_SEQ = 2**53  # milliseconds since 1970: some 285 000 years
ADDRESSES = 16
MODELS = 128
SHARDS = 16
HOLDINGS = 256
NAME_BYTES = 128
VERSION_BYTES = 64
DTYPE_NAME_BYTES = 16
MAX_LAYERS = 4096
MAX_BYTES = 2**60
MAX_CORES = 2**16
MAX_TOKENS = 2**40
MAX_RATE = 1e24  # flop/s, byte/s

# The exchange.
MEMBERS = 1024  # authors known at once
VOUCHED = 256  # authors without a link of ours that one peer may tell of
BATCH = 64  # records in one message
BATCH_BYTES = 8 * 2**20  # of one message
DIGEST_BYTES = 256 * 2**10
ROUND = 0.05  # seconds, at least, between two rounds of handing on and dialling
HAND_ON = 0.25  # seconds, at least, between two times of handing on: news travel together
DIGESTS = (64.0, 8.0)  # of one peer taken at once, and per second; we send 1 / HAND_ON
PULL_TIMEOUT = 5.0  # seconds
AUTHOR_UPDATES = (20.0, 2.0)  # records of one author accepted at once, and per second
OWN_UPDATES = (8.0, 1.0)  # the same of our own, below what others accept
RECLAIM_PAUSE = 30.0  # seconds between two steps over a record of our own from elsewhere

# Dialling members.
MEMBER_LINKS = 64  # links up to which members are dialled
DIALS = 8  # at once
DIAL_TIMEOUT = 5.0  # seconds for one address
DIAL_ADDRESSES = 16  # of one member, per round
DIAL_YIELD = 0.3  # seconds the larger peer id leaves the smaller one to dial first
DIAL_PAUSE = (1.0, 300.0)  # seconds after a failed round: first, most; doubled in between
FORGET = 600.0  # seconds without a link after which a member's record is dropped

# Liveness: docs/spec/liveness.md.
CHECK_S = 1.0  # seconds in which a check must bring a proof
STALL_S = 0.5  # seconds a check may be late before it means nothing: our own loop stood still
FRESH_S = 4.0  # seconds for which a proof alone keeps a member live
PROVE_AGAIN_S = (2.0, 10.0, 300.0)  # seconds between proofs with witnesses in 0, 1, more networks
RECHECK_S = 1.0  # seconds after a proof in which no rumour brings about another check
CHECK_PAUSE = (1.0, 60.0)  # seconds after a check without proof: first, most; doubled in between
ASK_SELF_S = 4.0  # from this pause on, seconds, the member is also dialled for the check
CHECKS = (128.0, 16.0)  # begun at once, and per second
CHECKS_AT_ONCE = 64
ALONE = 24  # live members without any witness
ALARMS = (64.0, 2.0)  # checks that one witness may bring about at once, and per second
TESTIMONIES = 512  # members of whom one witness may speak
ASKED = 3  # at once, for one proof
NEXT_S = 0.25  # seconds after which the next is asked where there is no hurry
ASKED_MOST = 6  # for one proof
TURN_S = 0.05  # seconds, at least, between two rounds of checks
TELL_S = 0.25  # seconds, at least, between two times of telling with whom links answer
TOLD = (64.0, 8.0)  # such messages of one peer taken at once, and per second
LINKS_BYTES = 64 * 2**10  # of one such message
FINDS = (128.0, 16.0)  # proofs that one peer may ask for by us, at once and per second
PROOFS = (256.0, 32.0)  # proofs that one peer may ask of us, at once and per second
NONCE_BYTES = 16
PROVE_S = 0.8  # seconds a witness waits for a proof

# Feeds: docs/spec/state.md. What each kind may hold stands in kinds.py.
PARTS = 16  # of a kind that is cut into parts
UPDATE_BYTES = 64 * 2**10  # one update that is no snapshot
SNAPSHOT_BYTES = 256 * 2**10  # the update that begins an epoch
ENTRY_HEADER_BYTES = 2**10  # what an entry says besides its update
EPOCH_ENTRIES = 4096
FACT_KEY_BYTES = 256
FACT_BYTES = 16 * 2**10  # the value of one key
DOCUMENT_ITEM_BYTES = 256  # of memory that a document takes for each value ever set, about
DOCUMENT_KEY_BYTES = 512  # the same for each key
WRITE_PAUSE = 0.25  # seconds, at least, between two entries of one own feed
WRITE_HOLD = 10.0  # seconds that an own feed stays as it is after a start, unless
WRITE_REPORTS = 3  # peers have shown what they hold of it
EPOCH_LOT = 2**20  # of the step beyond the last epoch, where the clock does not name a later one

# The store.
COMMIT_BYTES = 2**20  # of entries in one transaction
COMMIT_WORKS = 512  # changes in one transaction
LOAD_BYTES = 2**20  # of entries read together at the start
LOAD_FEEDS = 128  # feeds read together at the start
READ_ENTRIES = 64  # rows read together
HELD_BYTES = 32 * 2**20  # of others' entries kept in memory while the disk refuses
HELD_WORK = 256  # bytes that each of them counts besides
PROBE_BYTES = 256 * 2**10  # that the disk has to take before it counts as well again
REFUSED_PAUSE = 5.0  # seconds between two tries while the disk refuses
FREE_SHARE = 16  # one page of so many may be free before the file is made smaller
FREE_LEAST = 64  # free pages that do not count
FREED_AT_ONCE = 256  # pages given back in one transaction
