"""Constants of the trainer, each with its unit."""

# Data.
DATA_BYTES = 256 << 20  # bytes of one file of training data
LINE_BYTES = 4 << 20  # bytes of one line of it; parsing it holds Python's lock for some 20 ms
READ_BYTES = 1 << 20  # bytes of the file that are read and parsed in one go
PIECE_CHARACTERS = 32_768  # of a long text that are encoded at once
MESSAGES = 256  # messages of one conversation
ENCODES_AT_ONCE = 4  # texts that one data set has at the text process, which answers others as well
BAD_LINES_NAMED = 20  # broken lines that a reply names; further ones are counted
ROWS_MOST = 4_000_000  # rows of one data set
ROW_TOKENS = 2  # ids that a row must have: one to begin with, and one to learn
DISK_SPARE = 64 << 20  # bytes of the disk that stay free when a data set is written
LENGTHS = (16, 32_768)  # tokens of a row: least and most

# Steps.
RANK = 16
LENGTH = 512  # tokens of a row at most, or the model's context if that is shorter
BATCH = 8  # rows of one step
EPOCHS = 3.0
STEPS_LEAST = 60  # steps if neither steps nor epochs are given and the data set is small
EPOCHS_MOST = 10.0  # … within this many passes over it
STEPS_MOST = 1_000_000
BATCH_MOST = 1024  # rows of one step
WINDOW = 16  # batches whose rows are sorted by length together
WARMUP = 0.05  # share of the steps in which the rate rises to its peak …
RATE_END = 0.1  # … and the share of the peak to which it falls at the end
# The best rate of a LoRA with alpha = 2 * rank falls with the width of the model and hardly depends
# on the rank. Peak for a model with one hidden value; it is divided by their number. On the
# embedded model (256), 200 paragraphs and 69 steps took the held-out loss from 3.71 to 3.03 at
# 0.005, and to 3.19 at 0.0014. A model with 4,096 gets the 2.5e-4 that is usual for it.
RATE = 1.0
RATE_MOST = 0.01
# Learning rate for all weights of a model. It is lower, because each step changes more. On the
# embedded model, 200 paragraphs and 60 steps took the held-out loss from 2.97 to 2.91 at 0.00013,
# and to 2.97 at 0.0004.
RATE_WHOLE = 0.03
DECAY = 0.0  # of AdamW
BETAS = (0.9, 0.999)
EPSILON = 1e-8
CLIP = 1.0  # largest norm of a mean gradient

# Held-out rows.
HELD_OUT = 0.1  # share of the rows
HELD_OUT_ROWS = 128  # at most
HELD_OUT_LEAST = 10  # rows that a data set must have for some to be held out
LOOKS = 20  # times that the held-out loss is measured in one fine-tuning at most
LOOK_SHARE = 0.2  # share of the time of the steps that this may take

# Gradients.
NORMS = 16  # norms of accepted gradients that are remembered
NORM_FACTOR = 1000.0  # multiple of their median above which a gradient is refused
BAD_GRADIENTS = 5  # refused gradients of one step after which a fine-tuning fails

# Averaging with others.
EVERY = 30  # steps between two exchanges
EVERY_WHOLE = 24  # … if all weights are trained, of which an update has one in 32
JUDGED_ROWS = 16  # held-out rows by which the updates of others are judged
HASTE = 2.0  # steps that must fit into the time until a round closes; else it exchanges early
PART_SECONDS = 10.0  # for which a trainer that is done waits until the others have the last round
PART_LOOK = 0.25  # seconds between two looks at that

# Files.
CHECKPOINT_SHARE = 0.05  # share of the time that writing checkpoints may take
CHECKPOINT_PAUSE = 30.0  # seconds between two checkpoints
CHECKPOINT_BYTES = 16 << 30  # bytes of the largest one
HEAD_BYTES = 1 << 20  # bytes of its head
PLAN_BYTES = 256 << 10  # bytes of plan.json
CURVE_BYTES = 512 << 20  # bytes of loss.jsonl
CURVE_POINTS = 400  # points of a curve that a reply has
STARTS = 64  # runs of one fine-tuning, each of which writes a file of events

# Life.
RUNNING_AT_ONCE = 2  # fine-tunings of one node that compute; others wait
TUNINGS = 256  # fine-tunings of one node
RETRY = (1.0, 60.0)  # seconds until a failed attempt is repeated: first, maximum
CHAIN_RETRY = 10.0  # … the maximum if a stage has failed
ROUTE_LOOK = 1.0  # seconds between two looks for a chain, which costs no message
REFUSALS = 5  # refusals in a row that time does not cure, after which a fine-tuning fails
FOLLOW_PAUSE = 0.25  # seconds between two events of progress
SPEED_STEPS = 20  # steps over which the speed is measured
