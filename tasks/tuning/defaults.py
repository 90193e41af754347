"""Constants of tuning, each with its unit."""

# Limits of a stage.
TUNINGS_PER_PEER = 4  # open tunings of one trainer at one stage
TUNINGS_PER_NETWORK = 8  # … of all trainers in one network, as identities cost nothing
TUNINGS_OF_OTHERS = 12  # … of all trainers but this node's own
PASSES_PER_TUNING = 16  # passes of one tuning that are read or computed at once
STAGE_BYTES = 512 * 2**20  # inputs and answers of passes in the daemon, of all trainers together …
PEER_BYTES = 256 * 2**20  # … and of one
READ_S = 60.0  # seconds in which a trainer must send the input of a pass, or the tensors
WRITE_S = 60.0  # … and take the answer
TUNING_IDLE = 600.0  # seconds without a message until a stage closes a tuning
BUSY_S = 2.0  # seconds between two signs of life while a pass waits or is computed
RECEIVE_BYTES = 256 * 1024  # read from a stream at once
HEAD_BYTES = 4096  # largest frame from a stage, without its data

# For a trainer's chain.
OPEN_S = 20.0  # seconds in which a stage must open a tuning
SILENT_S = 10.0  # seconds without a sign of life after which a stage is replaced
LOOK_S = 0.5  # seconds between two looks at whether a stage's link has become quiet
PASS_S = 300.0  # seconds for one pass at a stage, with its time in queues
PART_POSITIONS = 1024  # positions of a part of a batch, at most, unless one row has more
LEAST_POSITIONS = 128  # … and if a stage refuses so few, another stage is used
LEAST_PARTS = 4  # parts of a batch with as many rows, so that several stages have work
REPLACED = 8  # stages that are replaced during one step
AVOIDED_S = 60.0  # seconds for which a stage that failed is used only as a last resort
LYING_S = 3600.0  # … and one whose results cannot be right
LARGEST = 1e6  # norm of derivatives for each counted position, at most
GROWTH = 1e3  # … and times the usual one of the same stage, …
BELIEVED = 1.0  # … unless it is at most this, which no step takes for more than it is
USUAL = 3  # results of a stage after which its usual norm is known
