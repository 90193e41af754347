"""Constants of the engine, each with its unit."""

INLINE_BYTES = 64 * 1024  # payloads of at least this many bytes are sent as a descriptor
HEADER_BYTES = 64 * 1024  # bytes of the largest frame header
PAYLOAD_BYTES = 1 << 30  # bytes of the largest payload of a frame
ANSWER_BYTES = 256 << 20  # bytes of the largest answer to one span
KEPT_ANSWERS = 8  # answers that a session stores for repeated spans …
KEPT_BYTES = 1 << 20  # … and their total size in bytes; the latest is always stored
KV_PART_BYTES = 2 << 20  # largest part of KV that is read or written in one piece, without header
KV_PARTS = 8  # parts that a worker is given to read or write between two steps
KV_WRONG = 0.25  # distance of a doubted block from the computed one at which it is wrong
WAITING_SPANS = 256  # spans of one session that may wait
WINDOW_ROWS = 64  # positions of one window, a span of drafts
WAITING_DRAFTS = 32  # windows of a session whose whole model is here that wait for its text
STOP_IDS = 1024  # ids in one span's `stop_ids`
CHUNK_BYTES = 16 << 20  # bytes of the largest chunk file (docs/spec/model.md: 1 MiB)
LOAD_DEPTH = 40  # nested containers in a shard's description; a config has 32 (dht/defaults.py)
LOAD_ITEMS = 1 << 22  # elements of a shard's description: two for each chunk
SHARED_HEAD_BYTES = 64 << 20  # a tied table of fewer bytes is stored in two layouts
NO_KV_POSITIONS = 1 << 24  # positions of a shard without layers, whose blocks need no memory
STATE_SLOTS = 2  # states of recurrent layers that a session may have: the latest and a snapshot
STATE_SESSIONS = 64  # most sessions of a shard with recurrent layers and attention
ROPE_BLOCK = 1024  # rotary tables grow by this many positions

DEVICE_SPARE_BYTES = 512 << 20  # of an accelerator's memory, left for intermediate values

EXIT_NO_DEVICE = 70  # the worker's status where its device cannot be used
MAX_RANK = 256  # of a LoRA adapter
ADAPTERS = 64  # adapters of one shard that a worker has loaded
ADAPTER_SHARE = 0.25  # largest part of a shard's KV memory that adapters take
ADAPTER_CHUNKS = 4096  # chunk files of one adapter
ADAPTER_DEPTH = 4  # nested containers in the description of an adapter

NICE = 5  # by which a worker's priority is lower than that of other programs
EXIT_NO_TORCH = 69  # EX_UNAVAILABLE: the worker's status where torch is absent
RESTART_PAUSE = 0.25  # seconds before the first restart of a worker, doubled each time …
RESTART_PAUSE_MOST = 30.0  # … up to this many seconds
RESTART_FORGET = 60.0  # seconds that a worker must live until the pause is reset
WORKER_DEADLINE = 1.0  # seconds without a frame after which a worker's sessions are lost …
WORKER_FACTOR = 8.0  # … or this multiple of the predicted time of its longest step, if longer
HUNG_KILL = 10.0  # seconds without a frame after which such a worker is killed
WATCH_ACTIVE = 60.0  # seconds after the last span for which a worker is watched
WATCH_PAUSE = 0.1  # seconds between two looks at it
WATCH_LATE = 0.5  # seconds by which a look may be late before the daemon itself is at fault
STOP_GRACE = 1.0  # seconds in which a worker may end by itself

PIECE_SECONDS = 0.01  # seconds in which tokens are collected before they are sent together

DECODE_FACTOR = 4.0  # budget for running texts, as a multiple of the time of a step with one row
PREFILL_FACTOR = 2.0  # budget with prompts, as a multiple of the time without them …
PREFILL_OWN_FACTOR = 1.8  # … and where all sessions with work are of one gateway
STEP_S = 0.02  # every budget is at least this many seconds
PREFILL_STEP_S = 0.5  # budget in seconds of a step in which no session generates text …
PREFILL_STEP_FACTOR = 6.0  # … or this multiple of the time of a step with one row, if larger
IDLE_STEP_S = 0.03  # … and of one in which all sessions are background, or that multiple
DECODE_PART = 0.75  # largest part of the budget for tokens of running texts while a prompt waits
PROMPT_STEPS = 4  # steps in which a gateway with texts gets at least one block of a prompt
BACKGROUND_PART = 0.1  # seconds of background work for each second of steps with other work
HOLD_S = 0.15  # seconds for which background work waits for an interactive request that has begun
SAVED_S = 0.5  # seconds of virtual time that a gateway with running texts may be behind the others
REFERENCE_PART = 0.01  # of the time in which rows are computed again without native kernels
REFERENCE_SAVED = 5.0  # seconds of it, at most, that may be used at once
STEP_ROWS = 512  # rows of one step on a CPU
PROMPT_PART = 2  # rows, beside texts, of whose multiple a part of a prompt may be in the kernels
GROUP_IDLE = 0.15  # part of the time for which a stage is idle before it makes more groups …
GROUP_BUSY = 0.05  # … and below which it makes fewer
GROUP_GROWTH = 1.25  # factor by which the number of groups changes, by 1 at least when it grows
GROUP_PAUSES = 4  # pauses of up to this many times between two rows of a session are idle time
GROUP_GAIN = 0.25  # seconds saved by making groups, as a part of a step's fixed ones, at least
ACCOUNTS = 1024  # gateways whose virtual time is stored
NETWORK_STEPS = 64  # steps for which a gateway without work counts among those of its network
USERS = 64  # users of one gateway whose virtual time is stored while they have no session
CALIBRATION_ROWS = 64  # rows of the larger step that is measured after loading …
CALIBRATION_S = 0.25  # … unless the smaller one takes longer than this many seconds
TEXTS = 16  # texts of the step that is measured to know what the row of a text takes …
TEXT_BLOCKS = 5  # … and blocks of KV of each
CHANGED = 1024  # logits that are changed by rules to measure what this takes
PICKS = 4  # tokens that are chosen at once to measure what their sampling parameters take
COLD_BYTES = 48 << 20  # keys and values that are read once, to measure how long this takes
LEAST_ROWS = (2, 4)  # rows to which smaller products may be padded; the faster is used
PACKED_ROWS = 64  # outputs up to a multiple of which the native kernels fill a matrix
PACKED_COLUMNS = 32  # … and inputs
PADDING_BYTES = 2**20  # of a layer by which its matrices may grow when they are filled, uncounted

HOST_WAIT_S = 30.0  # seconds for which a session in host memory waits for blocks, then it ends
HOST_PART = 0.5  # part of the free host memory that copies of KV may take

THREAD_BYTES = 4 << 20  # payloads above this are copied by a thread, not by the daemon's loop
PASS_POSITIONS = 8192  # positions of one training pass
TUNINGS = 32  # open tunings of a worker: more than all trainers on other nodes have
PASSES = 64  # passes of one tuning that wait
TUNING_BYTES = 1 << 30  # memory of all tunings of a worker
TUNING_SHARE = 0.5  # largest part of a shard's KV memory that tunings take if there is no other
PASS_UNIT_S = 0.001  # seconds of a unit of a pass, at least, while texts may be computed …
PASS_UNIT_PART = 0.05  # … or this part of the time of a step with one row, if it is longer
PASS_PART = 0.10  # seconds of passes for each second of steps, while both have work …
PASS_BACKGROUND_PART = 1.0  # … if all rows of the step are of background sessions
PASS_TEXTS_S = 2.0  # seconds after the last step in which units stay short
