"""Constants of this package, with their units."""

# A record: docs/spec/membership.md. A full one within these bounds is under RECORD_BYTES.
RECORD_BYTES = 32 * 2**10
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
TAG_BYTES = 8  # of the hash of a peer id, in messages about records
MAX_AGE = 2**16 - 1  # seconds, in such messages
ROUND = 0.05  # seconds, at least, between two rounds of handing on and dialling
HAND_ON = (16.0, 1.0)  # messages with record news: at once, and per second
HAND_ON_AGAIN = 15.0  # seconds, at least, until a change of a record that was news is announced
HAND_ON_NEW = 3.0  # seconds until the record of a peer that has just joined is announced
HAND_ON_PAUSE = 0.25  # seconds, at least, between two batches of them
DIGESTS = (64.0, 8.0)  # of one peer taken at once, and per second
SUMS = 32  # buckets of records whose sums two nodes compare
SUM_BYTES = 8
PUSHES = (32.0, 4.0)  # the same of records that are pushed; we send OWN_UPDATES
PULLS_TAKEN = (128.0, 16.0)  # the same of pulls of records; we send one or a few for each digest
PULL_TIMEOUT = 5.0  # seconds
AUTHOR_UPDATES = (20.0, 2.0)  # records of one author accepted at once, and per second
OWN_UPDATES = (8.0, 1.0)  # the same of our own, below what others accept
OWN_ADDRESSES = (1.0, 0.05)  # the same where only addresses have changed
ADDRESSES_GATHERED = 2.0  # seconds that such a change waits for further ones
CONTESTED = 600.0  # seconds for which it is told that another node has this one's key
RECLAIM_PAUSE = 30.0  # seconds between two steps over a record of our own from elsewhere

# Dialling members.
MEMBER_LINKS = 8  # links up to which members are dialled; peers' dials add to them
MORE_LINKS = 16  # the same while some member has no witness among the linked peers
LOST_LINKS = 64  # links up to which members that have lost their link are dialled
FIRST_LINKS = 3  # links up to which members are dialled at once, and not one by one
LINK_PAUSE = 30.0  # seconds between two dials beyond FIRST_LINKS
DIALS = 8  # at once
DIAL_TIMEOUT = 5.0  # seconds for one address
DIAL_ADDRESSES = 16  # of one member, per round
DIAL_YIELD = 0.3  # seconds the larger peer id leaves the smaller one to dial first
GHOSTS = (64, 0.5)  # failed dials to members that one peer named: at once, per second
GHOST_WAIT = 10.0  # seconds to wait before such a dial once those are used up
DIAL_PAUSE = (1.0, 300.0)  # seconds after a failed round: first, most; doubled in between
FORGET = 3600.0  # seconds without a link after which a member's record is dropped
MEMBERS_LOOK = 60.0  # seconds, at most, between two looks for whom to dial

# Liveness: docs/spec/liveness.md.
CHECK_S = 1.0  # seconds in which a check must bring a proof
STALL_S = 0.5  # seconds a check may be late before it means nothing: our own loop stood still
RIVAL_S = 6.0  # seconds after which the link of one that were gone would be so too
FRESH_S = 4.0  # seconds for which a proof alone keeps a member live
PROVE_AGAIN_S = (2.0, 10.0, 300.0)  # seconds between proofs with witnesses in 0, 1, more networks
RECHECK_S = 1.0  # seconds after a proof in which no rumour brings about another check
CHECK_PAUSE = (1.0, 60.0)  # seconds after a check without proof: first, most; doubled in between
ASK_SELF_S = 4.0  # from this pause on, seconds, the member is also dialled for the check
CHECKS = (128.0, 16.0)  # begun at once, and per second
CALM_CHECKS = (16.0, 0.25)  # checks of undoubted members: at once, and per second
CALM_QUESTIONS = (8.0, 0.25)  # questions for many such members: at once, and per second
ASKED_FOR = 128  # members in one such question
GATHER_S = 0.5  # seconds for which a witness gathers such questions
GATHERINGS = (3.0, 0.08)  # lots of them at once, and per second: one proof serves all of a lot
GATHERED = 256  # questions in one lot
ANSWER_S = 15.0  # seconds in which such a question is answered: its lot may wait for 13 s
QUESTIONS = (32.0, 1.0)  # such questions of one peer taken at once, and per second
PATH = 16  # hashes between a number and the signed one
CHECKS_AT_ONCE = 64
UNSEEN_S = 25.0  # seconds before the first check of a new member without a witness, as reports of
# new links come up to 20 s apart
ALONE = 24  # live members without any witness
ALARMS = (64.0, 2.0)  # checks that one witness may bring about at once, and per second
TESTIMONIES = 512  # members of whom one witness may speak
ASKED = 3  # at once, for one proof
NEXT_S = 0.25  # seconds until the next helper is asked, where the member's own link is asked first
NEXT_CALM_S = 0.6  # seconds until the next helper otherwise: two round trips around the world
ASKED_MOST = 6  # for one proof
TURN_S = 0.05  # seconds, at least, between two rounds of checks
TELL_S = 0.25  # seconds, at least, between two reports on links when one has stopped answering
TELL_GAINED = (3.0, 1 / 20)  # such reports at once, and per second, when links are new alone
LINKS_TOLD = (64.0, 8.0)  # such messages of one peer taken at once, and per second
LINKS_BYTES = 64 * 2**10  # of one such message
FINDS = (128.0, 16.0)  # proofs that one peer may ask for by us, at once and per second
PROOFS = (256.0, 32.0)  # proofs that one peer may ask of us, at once and per second
NONCE_BYTES = 32  # the size of a hash, because a signature may be over the hash of many of them
WATCHERS = 4  # peers that watch a node closely
WATCHERS_HEARD = 2  # watchers of a peer that must be linked here before its link may rest
REST_S = 20.0  # seconds of silence after which a resting link is pinged: some NATs forget at 30
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
SETTLE_AGAIN = 30.0  # seconds between two looks at whether own feeds say what they shall
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

# Whose feeds are kept.
FEEDS_BUDGET = 512 * 2**20  # bytes, of all authors together: on the disk, and in memory
FEEDS_ROOM = 7 / 8  # of the budget: below it those who found no room are looked at again
AUTHOR_WEIGHT = 4 * 2**10  # bytes that an author weighs besides its entries or facts
FACT_MEMORY = 720  # bytes that a fact takes in the views, whatever it says: 570 to 900, and
FACT_MEMORY_TIMES = 2  # so many times its own bytes
LINKED_SHARE = 512  # a peer with a link has one part of so many of the budget for nothing
AUTHOR_LEAST = 32 * 2**10  # bytes that it weighs at least: 16,384 authors
AUTHOR_VOUCHED = 64  # authors that one vouches for
VOUCH_LOOK = 5.0  # seconds, at most, between two looks at whom this node vouches for
VOUCH_SOON = 0.15  # seconds a link, at most, until it looks for the sake of a new one
VOUCH_KEPT = 600.0  # seconds without a link for which it goes on vouching
VOUCHED_ENOUGH = 8  # peers that a node vouches for, where it has as many
VOUCHED_LEAST = 3  # vouchers: a linked peer with fewer is a reason to vouch again
VOUCH_PAUSE = 10.0  # seconds, at least, between two changes: links come one by one on joining
VOUCH_CHANGES = (4.0, 1 / 60)  # of whom it vouches for, at once and per second
VOUCHERS = 64  # of one author that are remembered
VOUCH_DEPTH = 16  # from a root, whom those vouch for, and so on
PAST_LINKS = 512  # authors that had a link

# What is kept of them.
UNUSED_KEPT = 600.0  # seconds for which a small node keeps what it has no use for any more

# The exchange of feeds: messages.
NEWS_HEADS = 1_024  # heads in one `state.news`
NEWS_BYTES = 128 * 2**10
DIGEST_ROWS = 64  # kinds and parts in one message
DIGEST_MESSAGE = 320 * 2**10  # bytes: 64 rows of 256 buckets
HEADS = 2_048  # in one answer to `state.heads`
HEADS_BYTES = 512 * 2**10
HAVE_FEEDS = 32  # in one `state.have`: all own ones
PULL_FEEDS = 16  # asked for in one `state.pull`
PULL_BYTES = 32 * 2**10  # of sealed entries in one answer, and what the last one has over
PULL_ITEMS = 4_096
# The exchange of feeds: what is lacking.
TOLD = 2_048  # feeds of which one peer has told what is lacking
PACED = 16_384  # authors of whom it is known how much came of late
LOOKED_AT = 4_096  # of what was told, at once, to choose whom to ask: 5 ms
LOOK_AGAIN = 0.1  # seconds until the rest is looked at
PULLS = 24  # under way at once
PULLS_MORE = 20  # of which a link with one under way may have a further one
PULLS_OF_ONE = 4  # over one link
PULLS_TOOK = 12  # pulls over which it is averaged how long they take
PULL_TIMES = 1.2  # so many times that, until others are asked as well
PULL_PATIENCE = (0.25, 1.0)  # seconds: the bounds of that
PATIENT_LOT = 8  # feeds of NEWS_PATIENT kinds that are asked for once the budget is used up
PATIENT_LOTS = (12.0, 0.25)  # such lots at once, and per second: 96 feeds, and 2 a second
PATIENT_BUCKETS = 32  # of 256, in which their heads are asked for while the budget is used up
PATIENT_GIVEN = ((8.0, 0.2), (192.0, 4.0))  # given to each peer, and besides to all: at once, per s
VAIN_S = 5.0  # seconds for which a teller is not asked again for what it did not give
AUTHOR_RATE = 32 * 2**10  # bytes per second of one author's entries taken in the long run
AUTHOR_BURST_S = 64.0  # seconds of it at once
ENTRY_COST = 2**10  # bytes that an entry counts besides its own

# Documents in memory.
DOCUMENTS = 64
DOCUMENTS_BYTES = 64 * 2**20
TURN_BYTES = 8 * 2**10  # bytes of small feeds of one peer that are taken in together
TAKEN_BYTES = 256 * 2**10  # bytes of entries taken in or read at once
SETTLED_AT_ONCE = 32  # authors in one step whose voucher went, or who make room
DROPPED_AT_ONCE = 256  # authors of whom all goes
SHOWN_AT_ONCE = 64  # facts or records that are read in one step (steps.py),
SHOWN_BYTES = 16 * 2**10  # or bytes of them: 4 KiB of empty maps take a millisecond
LOADED_BYTES = 64 * 2**10  # bytes of entries made into a document at once

# The exchange of feeds: when.
GOSSIP_ROUND = 1.0  # seconds between two comparisons with a random peer, and a quarter of jitter
GOSSIP_PATIENT = 8.0  # the same after news of NEWS_PATIENT kinds alone
GOSSIP_CALM = 16.0  # longest such pause; it doubles while nothing is new
EXCHANGE_TURN = 0.01  # seconds, at least, between two looks at what to tell, pull or compare
NEWS_PAUSE = 0.04  # seconds between two batches of feed news: below what FEED_NEWS allows
NEWS_PATIENCE = (8.0, 0.1)  # batches of NEWS_PATIENT kinds alone: at once, per second
NEWS_GATHERED = 0.64  # seconds: what gathered for longer is no cut that has healed
NEWS_PATIENT = ("member", "models")
NEWS_WAITING = 4_096  # feeds of which there is news, at most
NEIGHBOURS = 8  # peers that are told of news: of as many it hears itself, about
NEIGHBOURS_FEW = 2  # of NEWS_PATIENT kinds that have gathered: comparisons bring the rest
NEIGHBOURS_MOST = 20  # where there are many: one node in 25 hears of three or fewer of eight
NEWS_MANY = 8  # feeds
NEIGHBOUR_TURN = 60.0  # seconds until one of them is replaced
COVER = 4  # peers that are told of a feed, at least, where so many of the linked ones keep it
REGAINED = 2  # peers compared with at once for the sake of what is kept from now on
OWN_AGAIN = 60.0  # seconds until a peer is asked again for own feeds that are not compared
RECHECKED = 2  # peers that are compared with at once for the sake of new authors
RECHECK = 0.5  # seconds, at least, between two comparisons for the sake of new authors
RECHECKS = (3.0, 1 / 15)  # such comparisons at once, and per second: many may join together
REFILL = 60.0  # seconds between two looks at whom there may be room for
REFILLED_AT_ONCE = 32  # authors, of 64 whom each vouches for, that are looked at in one step
CALL_TIMEOUT = 10.0  # seconds, of comparing
FEED_PULL_TIMEOUT = 30.0  # seconds for a megabyte
SAME_PAIRS = 1_024  # buckets, of one peer, whose difference is known to be of no use
FEED_NEWS = (128.0, 32.0)  # `state.news` of one peer at once, and per second
FEED_ASKS = (64.0, 16.0)  # calls of one peer at once, and per second
FEED_PULLS = (128.0, 32.0)  # the same of `state.pull`

# Views, and what their facts may say: docs/spec/state.md, Facts.
WATCHED = 1024  # subjects that changed and of which a watcher has not been told
MAX_COUNT = 2**53  # requests, tokens, milliseconds
JOB_KIND_BYTES = 32
JOB_KINDS = 16  # that one member does
JOB_SPEC_BYTES = 8 * 2**10
JOB_NONCE_BYTES = 16
JOB_DEPENDENCIES = 16
JOB_REFUSED = 64  # claimants that a job's author does not take
JOB_LEASE = (1.0, 600.0, 86_400.0)  # seconds: least, where none is named, most
JOB_RESULT_BYTES = 1024
MAX_ATTEMPT = 2**16
MAX_STEP = 2**32

# Claims: when a node takes a job.
SHARE_POINTS = 16  # of one worker on the ring of shares
CLAIM_FEW = 0.1  # of the workers: where no more fall silent, they have ended and are not cut off
CLAIM_PATIENCE = (20.0, 240.0)  # seconds of silence until one's jobs are others': few, many silent
CLAIM_COURTESY = 3.0  # seconds, to twice as many, that what falls to another is left to it
CLAIM_WAITED = 60.0  # seconds, to twice as many, that an author waits for whom nobody works
CLAIM_HEIRS = 64  # points of the ring that are looked at for one who is not gone
CLAIM_LEASES = 16  # that a job may be held in all, whatever its holders show
CLAIM_PAUSE = 5.0  # seconds until a job is tried again for which there was no room here
CLAIM_STUBBORN = 3  # attempts from which on a claimant no longer gives way to other open claims
CLAIM_SCANNED = 1024  # jobs looked at for the next one to take
CLAIM_KEPT = 3600.0  # seconds that an own claim stays when its job is gone

# Private groups: docs/spec/group.md.
GROUP_IDENT_BYTES = 16
GROUP_NONCE_BYTES = 16
GROUP_MEMBERS = 4_096  # who were granted a role, the revoked among them
GROUP_OWNERS = 64
OPERATOR_CLIENTS = 512  # that one operator lets in
KEY_NUMBER = 2**32  # of a rotation, the highest
KEY_PARTS = 256  # of one rotation
KEY_PART_MEMBERS = 256  # in one fact: some 14 KiB
KEY_BOXES_TRIED = 4  # of one rotation, by one member
KEYS_KEPT = 64  # secrets that a node remembers
KEYS_SHOWN = (0, 1, 2, 3, 7, 15, 31)  # those proven at a door, from the newest; and the oldest
GROUP_LOOK = 5.0  # seconds between two looks at the group where nothing changes
GROUP_PAUSE = 0.1  # seconds, at least, between two
GROUP_PATIENCE = 30.0  # seconds that a change of the group may take until it is on disk
STRANGER_S = 30.0  # seconds for which a link to somebody who is no member stays
OWNERS_LISTED = 5  # in a hint
