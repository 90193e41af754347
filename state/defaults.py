"""Limits, timeouts and other constants of the shared state, with their units."""

# Member records: docs/spec/membership.md. A record that uses all limits is below RECORD_BYTES.
RECORD_BYTES = 32 * 2**10
OPENED = 512  # checked and decoded records that a process remembers
OPENED_BYTES = 2 * 2**10  # the most bytes of a record that is remembered
MAX_SEQ = 2**53  # milliseconds since 1970: some 285 000 years
ADDRESSES = 16
MODELS = 128
SHARDS = 16
AIMS = 4  # models in which one node has or seeks layers
STORED = 256
NAME_BYTES = 128
VERSION_BYTES = 64
DTYPE_NAME_BYTES = 16
EXACTNESS_BYTES = 64  # of the name of a class of exactness
MAX_LAYERS = 4096
MAX_BYTES = 2**60
MAX_CORES = 2**16
MAX_TOKENS = 2**40
MAX_RATE = 1e24  # flop/s, byte/s
MAX_STEP_S = 3600.0  # seconds of a step
MAX_BATCH = 2**20  # rows of one step
DEVICES = 16  # on which a member computes
DEVICE_TEXT_BYTES = 32  # of the name and the instructions of a device
LINKS = 64  # measured links to other members that one member reports
MAX_TRIP = 60_000  # milliseconds of a round trip
SHARED = 32  # models of other engines that one member offers
SHARED_WORDS = 16  # things that one of them takes
SHARED_TEXT_BYTES = 32  # of the name of its engine, and of one such thing

# The exchange of member records.
MEMBERS = 1024  # authors whose records are stored
VOUCHED = 256  # records of authors without a link here that are stored because of one peer
BATCH = 64  # records in one message
BATCH_BYTES = 8 * 2**20  # in one message
TAG_BYTES = 8  # of the hash of a peer id that stands for it in messages about records
MAX_AGE = 2**16 - 1  # seconds; the highest age in such messages
ROUND = 0.05  # seconds, at least, between two rounds of forwarding and dialling
HAND_ON = (16.0, 0.5)  # announcements of records: at once, and per second
HAND_ON_AGAIN = 15.0  # seconds after an announcement for which a change waits that affects no route
HAND_ON_NEW = 3.0  # seconds until the record of a peer that has just joined is announced
HAND_ON_PAUSE = 0.25  # seconds, at least, between two batches of announcements
DIGESTS = (64.0, 8.0)  # digests accepted from one peer: at once, and per second
SUMS = 32  # buckets of records whose checksums two nodes compare
SUM_BYTES = 8
PUSHES = (32.0, 4.0)  # pushed records accepted from one peer; this node sends OWN_UPDATES
PULLS_TAKEN = (128.0, 16.0)  # record pulls accepted from one peer; this node sends a few per digest
PULL_TIMEOUT = 5.0  # seconds
AUTHOR_UPDATES = (20.0, 2.0)  # records of one author accepted at once, and per second
OWN_UPDATES = (8.0, 1.0)  # records of this node, fewer than others accept: at once, and per second
OWN_ADDRESSES = (1.0, 0.05)  # such records in which only addresses have changed
SLIGHT_S = 60.0  # seconds after one version for which a change waits that peers can do without
ADDRESSES_GATHERED = 2.0  # seconds for which a change of addresses waits for further changes
CONTESTED = 600.0  # seconds for which another node with this node's key is reported
RECLAIM_PAUSE = 30.0  # seconds between two reactions to a later record or epoch of this key

# Dialling members.
MEMBER_LINKS = 8  # links up to which members are dialled; peers' dials add to them
MORE_LINKS = 16  # links up to which members are dialled while any member has no witness
LOST_LINKS = 64  # links up to which members that have lost their link are dialled
REGAINED_LINKS = (2.0, 1 / 60)  # links to lost members beyond MEMBER_LINKS: at once, and per second
FIRST_LINKS = 3  # links up to which members are dialled at once, and not one by one
FIRST_LINKS_OF_MANY = 2  # the same if more than FEW_MEMBERS are known
FEW_MEMBERS = 16
LINK_PAUSE = 30.0  # seconds between two dials beyond FIRST_LINKS
DIALS = 8  # concurrent dials
DIAL_TIMEOUT = 5.0  # seconds for one address
DIAL_ADDRESSES = 16  # of one member, per round
DIAL_YIELD = 0.3  # seconds for which the larger peer id waits for a dial of the smaller
GHOSTS = (64, 0.5)  # failed dials to members that one peer reported: at once, per second
GHOST_WAIT = 10.0  # seconds to wait before such a dial once GHOSTS is used up
DIAL_PAUSE = (1.0, 300.0)  # seconds after a failed round: first, maximum; doubled each time
FORGET = 3600.0  # seconds without a link after which a member's record is dropped
FORGET_LOOK = 60.0  # seconds between two looks for such records
MEMBERS_LOOK = 60.0  # seconds, at most, between two searches for members to dial

# Liveness: docs/spec/liveness.md.
CHECK_S = 1.0  # seconds in which a check must bring a proof
STALL_S = 0.5  # seconds; a check that is later than this is void, because this node stalled
RIVAL_S = 6.0  # seconds to wait for the checks of rivals: by then, a dead rival's link has ended
FOLLOW_AGAIN_S = 20.0  # seconds between proofs of a member whose end a peer reports: this is how
# long that peer alone can hide it, which a witness that lies can do for 30 (see CROWD)
TOGETHER_S = 8.0  # seconds by which a check may be early to be made together with others, at least
FRESH_S = 4.0  # seconds for which a proof alone keeps a member live
PROVE_AGAIN_S = (2.0, 10.0, 300.0)  # seconds between proofs with witnesses in 0, 1, more networks
CROWD = 10  # live members above which these proofs and those of followed members are rarer
RECHECK_S = 1.0  # seconds after a proof in which no rumour causes another check
CHECK_PAUSE = (1.0, 60.0)  # seconds after a failed check: first, maximum; doubled each time
ASK_SELF_S = 4.0  # from this pause on, in seconds, the member is also dialled for the check
CHECKS = (128.0, 16.0)  # checks begun at once, and per second
CALM_CHECKS = (16.0, 0.25)  # checks of members not in doubt: at once, and per second
CALM_QUESTIONS = (8.0, 0.25)  # questions about many such members: at once, and per second
ASKED_FOR = 128  # members in one such question
GATHER_S = 0.5  # seconds for which a witness gathers such questions
GATHERINGS = (3.0, 0.08)  # batches of questions at once, and per second: each needs one proof
GATHERINGS_SOON = (8.0, 0.25)  # batches that do not wait for these, because a member is new
GATHER_NEW_S = 10.0  # seconds for which a member that was asked about is new
GATHERED = 256  # questions in one batch
ANSWER_S = 15.0  # seconds in which such a question is answered: its batch may wait for 13 s
QUESTIONS = (32.0, 1.0)  # such questions accepted from one peer: at once, and per second
PATH = 16  # hashes between a nonce and the signed root
CHECKS_AT_ONCE = 64
CHECK_ROUNDS = (4.0, 1.0)  # rounds of checks that begin together: at once, and per second
UNSEEN_S = 25.0  # seconds before the first check of a new member without a witness, as reports of
# new links come up to 20 s apart
ALONE = 96  # live members without a witness: at this number, no further such member is checked
ALARMS = (64.0, 2.0)  # checks that one witness may cause: at once, and per second
TESTIMONIES = 512  # members that one witness may report on
ASKED = 3  # peers asked at once for one proof
LINKED_S = 0.5  # seconds until the first helper is asked, if the member's own link answers
NEXT_S = 0.25  # seconds until the next one is asked about a member in doubt, or with such a link
NEXT_CALM_S = 0.6  # seconds until the next peer otherwise: two round trips around the world
ASKED_MOST = 6  # peers asked in all for one proof
TURN_S = 0.05  # seconds, at least, between two rounds of checks
TURN_MEMBER_S = 0.0005  # the same for each member: more of them are due in one round
TURN_MOST_S = 0.5  # the same, at most
TELL_S = 0.25  # seconds, at least, between two reports on links when one has stopped answering
TELL_GAINED = (3.0, 1 / 20)  # reports on new links only: at once, and per second
LINKS_TOLD = (64.0, 8.0)  # reports accepted from one peer: at once, and per second
LINKS_BYTES = 64 * 2**10  # of one report
FOLLOWED = 2 * ALONE  # members whose end one peer hears of through this node
FOLLOWED_S = 330.0  # seconds for which it does after a proof: a new one comes within 300 s
FINDS = (128.0, 16.0)  # proofs of members that one peer may ask for: at once, and per second
PROOFS = (256.0, 32.0)  # proofs of this node that one peer may ask for: at once, and per second
NONCE_BYTES = 32  # the size of a hash, because a signature may cover the hash of many nonces
WATCHERS = 4  # peers that watch a node closely, and so notice its end at once
WATCHERS_HEARD = 2  # linked watchers of a peer that are needed before its link may rest
PLACES = 16_384  # peers whose places are remembered while the watchers of others are computed
CARRIERS = 2  # linked peers with a link to a watcher that is not linked itself, so that it counts
REST_S = 20.0  # seconds of silence after which a resting link is pinged: some NATs forget at 30
PROVE_S = 0.8  # seconds for which a witness waits for a proof

# Feeds: docs/spec/state.md. The limits of each kind are in kinds.py.
PARTS = 16  # of a kind that is divided into parts
UPDATE_BYTES = 64 * 2**10  # of one update other than a snapshot
SNAPSHOT_BYTES = 256 * 2**10  # of the update that begins an epoch
ENTRY_HEADER_BYTES = 2**10  # of the fields of an entry besides its update
EPOCH_ENTRIES = 4096
FACT_KEY_BYTES = 256
FACT_BYTES = 16 * 2**10  # of the value of one key
DOCUMENT_ITEM_BYTES = 256  # approximate memory of a document for each value ever set
DOCUMENT_KEY_BYTES = 512  # approximate memory of a document for each key
WRITE_PAUSE = 0.25  # seconds, at least, between two entries of one of this node's feeds
WRITE_HOLD = 10.0  # seconds after the start before this node's feeds are written, unless
WRITE_REPORTS = 3  # this many peers have reported their heads of these feeds before
SETTLE_AGAIN = 30.0  # seconds between two checks that this node's feeds have its facts
EPOCH_LOT = 2**20  # range of the random step to a new epoch, if the clock is behind the last one

# The store.
COMMIT_BYTES = 2**20  # of entries in one transaction
COMMIT_WORKS = 512  # changes in one transaction
LOAD_BYTES = 2**20  # of entries read together at the start
LOAD_FEEDS = 128  # feeds read together at the start
READ_ENTRIES = 64  # rows read together
HELD_BYTES = 32 * 2**20  # of other authors' entries in memory while the disk refuses
HELD_WORK = 256  # bytes that each change counts as, besides its entries
PROBE_BYTES = 256 * 2**10  # that the disk must accept before it counts as working again
REFUSED_PAUSE = 5.0  # seconds between two attempts while the disk refuses
FREE_SHARE = 16  # the file is shrunk once more than one page in FREE_SHARE is free
FREE_LEAST = 64  # free pages that do not count
FREED_AT_ONCE = 256  # pages given back in one transaction

# Selection of the authors whose feeds are stored.
FEEDS_BUDGET = 512 * 2**20  # bytes, for all authors together: on the disk, and in memory
FEEDS_ROOM = 7 / 8  # of the budget: below it, authors that found no space are tried again
AUTHOR_WEIGHT = 4 * 2**10  # bytes that an author weighs besides its entries or facts
FACT_MEMORY = 720  # bytes that any fact takes in the views (measured: 570 to 900), and
FACT_MEMORY_TIMES = 2  # times its own size
LINKED_SHARE = 512  # the free share of a linked peer is the budget divided by this
AUTHOR_LEAST = 32 * 2**10  # bytes that an author weighs at least: 16,384 authors
AUTHOR_VOUCHED = 64  # authors that one author vouches for, at most
VOUCH_LOOK = 5.0  # seconds, at most, between two choices of the peers to vouch for
VOUCH_SOON = 0.15  # seconds for each link, at most, until a new link causes such a choice
VOUCH_KEPT = 600.0  # seconds without a link for which a node continues to vouch for a peer
VOUCHED_ENOUGH = 8  # peers that a node vouches for, if it has that many
VOUCHED_LEAST = 3  # vouchers: a linked peer with fewer is a reason to vouch again
VOUCH_PAUSE = 10.0  # seconds, at least, between two changes: links come one by one on joining
VOUCH_CHANGES = (4.0, 1 / 60)  # changes of the fact `vouches`: at once, and per second
VOUCHERS = 64  # vouchers stored of one author
VOUCH_DEPTH = 16  # levels of vouching below a top-level author
PAST_LINKS = 512  # authors that are stored because they had a link

# Selection of their feeds.
UNUSED_KEPT = 600.0  # seconds for which a small node stores feeds that it no longer needs

# The exchange of feeds: messages.
NEWS_HEADS = 1_024  # heads in one `state.news`
NEWS_BYTES = 128 * 2**10
DIGEST_ROWS = 64  # kinds and parts in one message
DIGEST_MESSAGE = 320 * 2**10  # bytes: 64 rows of 256 buckets
HEADS = 2_048  # in one reply to `state.heads`
HEADS_BYTES = 512 * 2**10
HAVE_FEEDS = 32  # in one `state.have`: all feeds of one author
PULL_FEEDS = 16  # in one `state.pull`
PULL_BYTES = 32 * 2**10  # of sealed entries in one reply, which the last one may exceed
PULL_ITEMS = 4_096
# The exchange of feeds: missing entries.
TOLD = 2_048  # offers stored of one peer, each of one feed
PACED = 16_384  # authors whose recent rate is stored
LOOKED_AT = 4_096  # offers checked at once to choose the next pulls: 5 ms
LOOK_AGAIN = 0.1  # seconds until the other offers are checked
PULLS = 24  # concurrent pulls
PULLS_MORE = 20  # concurrent pulls below which a link may have more than one
PULLS_OF_ONE = 4  # concurrent pulls over one link
PULLS_TOOK = 12  # pulls over which the duration of pulls is averaged
PULL_TIMES = 1.2  # multiple of that average, after which other peers are asked as well
PULL_PATIENCE = (0.25, 1.0)  # seconds: limits of that time
PATIENT_LOT = 8  # feeds of NEWS_PATIENT kinds that are pulled together once the budget is used up
PATIENT_LOTS = (12.0, 0.25)  # such lots at once, and per second: 96 feeds, and 2 a second
PATIENT_PAUSE = 4.0  # seconds between two pulls of less than a lot, once half of these are used up
PATIENT_BUCKETS = 32  # of 256, whose heads are compared while the budget is used up
PATIENT_GIVEN = ((8.0, 0.2), (192.0, 4.0))  # such feeds given to each peer, to all: at once, per s
PATIENT_WORTH = 4  # such feeds that a peer can give again before it is asked for more
VAIN_S = 5.0  # seconds for which a peer is not asked again for what it did not give
AUTHOR_RATE = 32 * 2**10  # bytes per second of one author's entries accepted in the long run
AUTHOR_BURST_S = 64.0  # seconds of that rate accepted at once
ENTRY_COST = 2**10  # bytes that an entry counts as, besides its size

# Documents in memory.
DOCUMENTS = 64
DOCUMENTS_BYTES = 64 * 2**20
TURN_BYTES = 8 * 2**10  # bytes of small feeds of one peer that are added together
TAKEN_BYTES = 256 * 2**10  # bytes of entries added or read at once
SETTLED_AT_ONCE = 32  # authors that are moved or evicted in one step
DROPPED_AT_ONCE = 256  # authors dropped from the archive in one step
SHOWN_AT_ONCE = 64  # facts or records that are read in one step (steps.py),
SHOWN_BYTES = 16 * 2**10  # or bytes of them: 4 KiB of empty maps take a millisecond
LOADED_BYTES = 64 * 2**10  # bytes of entries loaded into a document at once

# The exchange of feeds: when.
GOSSIP_ROUND = 1.0  # seconds between two comparisons with a random peer, and a quarter of jitter
GOSSIP_PATIENT = 8.0  # the same after news of NEWS_PATIENT kinds only
GOSSIP_CALM = 16.0  # the longest such time; it doubles while nothing is new
EXCHANGE_TURN = 0.01  # seconds, at least, between two rounds of the exchange's loop
NEWS_PAUSE = 0.04  # seconds between two batches of feed news: below what FEED_NEWS allows
NEWS_PATIENCE = (8.0, 0.1)  # batches of NEWS_PATIENT kinds only: at once, per second
NEWS_GATHERED = 0.64  # seconds: news gathered for longer do not come from a healed partition
NEWS_PATIENT = ("member", "models")
NEWS_WAITING = 4_096  # feeds with pending news, at most
NEIGHBOURS = 8  # peers that get news; a node gets news from about as many itself
NEIGHBOURS_FEW = 2  # peers that get gathered news of NEWS_PATIENT kinds; other peers compare
NEIGHBOURS_MOST = 20  # peers that get news of many feeds: with 8, some nodes get it from few peers
NEWS_MANY = 8  # feeds from which on news counts as many
NEIGHBOUR_TURN = 60.0  # seconds until one neighbour is replaced
COVER = 4  # peers that get news of a feed, at least, if that many linked peers store it
REGAINED = 2  # peers compared with at once because this node stores more feeds
OWN_AGAIN = 60.0  # seconds between two requests to a peer for heads that comparisons leave out
RECHECKED = 2  # peers compared with at once because of new authors
RECHECK = 0.5  # seconds, at least, between two comparisons because of new authors
RECHECKS = (3.0, 1 / 15)  # such comparisons at once, and per second: many may join together
REFILL = 60.0  # seconds between two searches for authors that fit into the budget
REFILLED_AT_ONCE = 32  # vouching authors, of up to 64 others each, processed in one step
CALL_TIMEOUT = 10.0  # seconds for a call of a comparison
FEED_PULL_TIMEOUT = 30.0  # seconds, enough for a megabyte
SAME_PAIRS = 1_024  # buckets of one peer that are known to differ without anything to pull
FEED_NEWS = (128.0, 32.0)  # `state.news` of one peer: at once, and per second
FEED_ASKS = (64.0, 16.0)  # calls of one peer: at once, and per second
FEED_PULLS = (128.0, 32.0)  # `state.pull` of one peer: at once, and per second

# Views, and the bounds of their facts: docs/spec/state.md, Facts.
WATCHED = 1024  # changed subjects that a watcher has not received yet, at most
MAX_COUNT = 2**53  # requests, tokens, milliseconds
JOB_KIND_BYTES = 32
JOB_KINDS = 16  # that one member publishes
JOB_SPEC_BYTES = 8 * 2**10
JOB_NONCE_BYTES = 16
JOB_DEPENDENCIES = 16
JOB_REFUSED = 64  # claimants that a job's author refuses
TUNING_ENTRIES = 64  # updates in a step of a run of training
JOB_LEASE = (1.0, 600.0, 86_400.0)  # seconds: minimum, default, maximum
JOB_RESULT_BYTES = 1024
JOB_PARTS = 256  # pieces of one job
JOB_ROWS = 64  # rows of one piece
JOB_PRIORITY = 5  # of a job that names none
MAX_PRIORITY = 9
MAX_DEADLINE = 2**40  # seconds since 1970
CLAIM_SAVED_BYTES = 40  # root of a blob, and its size
MAX_CLAIM_TAKES = 86_400  # seconds
MAX_ATTEMPT = 2**16
MAX_STEP = 2**32

# Claims: when a node takes a job.
SHARE_POINTS = 16  # points of one worker on the ring of shares
CLAIM_FEW = 0.1  # share of workers: if more fall silent, a partition is assumed, not their end
CLAIM_PATIENCE = (20.0, 240.0)  # seconds until a silent worker's jobs pass on: few, many silent
CLAIM_COURTESY = 3.0  # seconds, up to doubled, for which another worker's job is left to it
CLAIM_WAITED = 60.0  # seconds, up to doubled, until an author without any worker comes first
CLAIM_HEIRS = 64  # points of the ring that are searched for a live worker, at most
CLAIM_LEASES = 16  # leases for which a job may be held in all, whatever progress is shown
CLAIM_PAUSE = 5.0  # seconds until a retry of a job for which this node had no capacity
CLAIM_STUBBORN = 3  # attempts from which on a claimant no longer yields to other open claims
CLAIM_SCANNED = 1024  # jobs considered at once for the next one to take
CLAIM_KEPT = 3600.0  # seconds for which a claim of this node stays after its job has disappeared

# Private groups: docs/spec/group.md.
GROUP_IDENT_BYTES = 16
GROUP_NONCE_BYTES = 16
GROUP_MEMBERS = 4_096  # peers that were granted a role, including revoked ones
GROUP_OWNERS = 64
OPERATOR_CLIENTS = 512  # that one operator admits
KEY_NUMBER = 2**32  # the highest number of a rotation
KEY_PARTS = 256  # of one rotation
KEY_PART_MEMBERS = 256  # in one fact: some 14 KiB
KEY_BOXES_TRIED = 4  # of one rotation, by one member
KEYS_KEPT = 64  # secrets that a node stores
KEYS_SHOWN = (0, 1, 2, 3, 7, 15, 31)  # positions, newest first, of secrets proven to peers
GROUP_LOOK = 5.0  # seconds between two decisions of the group if nothing changes
GROUP_PAUSE = 0.1  # seconds, at least, between two decisions
GROUP_PATIENCE = 30.0  # seconds that a change of the group may take to be on disk
STRANGER_S = 30.0  # seconds for which a link to a peer that is not a member stays
OWNERS_LISTED = 5  # in a hint
