"""Constants of fine-tunings that move, each with its unit."""

KIND = "finetune"  # of the job

# A checkpoint.
MANIFEST_BYTES = 128 << 10  # of a checkpoint: the names of its parts
PAGE = 1024  # points of a curve in one part; a full one never changes
PAGE_BYTES = 512 * PAGE  # of such a part
PAGES = 1024  # of one curve
LARGEST = 1e6  # magnitude of a value. Gradients are clipped, so moments are below 1, and a step
# moves a weight by a few times the learning rate, which is at most 1
STATE_BYTES = 2 << 30  # of all tensors of a checkpoint that a node takes from another one
POSITIONS = 1 << 20  # of a batch (rows times tokens) that a node trains for another one

# Places of trainers.
PLACE_LOOK = 30.0  # seconds between two charges of the author of what is trained here
PLACE_LEAD = 300.0  # seconds by which an author was served more, until it leaves a place to others
LACKS_FOR = 10.0  # seconds for which the author of a job that asked for a place lacks one
LACKING = 256  # authors that lack a place and are remembered

# A second copy.
STAND_BY_TIME = 60.0  # seconds in which another node takes a checkpoint
STAND_BY_RATE = (8.0, 0.5)  # checkpoints that one node may give to this one: at once, per second
STAND_BY_TOTAL = (32.0, 1.0)  # … all nodes together, because peers cost nothing
HELD = 16  # fine-tunings of which this node has checkpoints of others
NAMED_AFTER = 60.0  # seconds after which a claim names a checkpoint that no other node takes
CLAIM_TIME = 5.0  # seconds for which a checkpoint waits until its trainer's claim is here
LEAVE_TIME = 8.0  # seconds in which a trainer that stops gives its last checkpoint to another node
FETCH_PATIENCE = 10.0  # seconds without a byte of a checkpoint until an older one is used
CALL_TIME = 10.0  # seconds in which a trainer answers that it stops

# The node of the user.
LOOK = 5.0  # seconds between two looks at a trainer elsewhere, if nothing changes
CHECK_CHAINS = 2  # chains that must disagree with a trainer until its result is refused
CHECK_ROWS = 16  # held-out rows that are computed at once
CHECK_SHARE = 0.02  # by which a held-out loss may be higher: stages have weights of 8 or 16 bits
CHECK_NATS = 0.01  # … and this much more, per token
CHECK_PATIENCE = 600.0  # seconds in which no chain can be reached, after which a result is believed
