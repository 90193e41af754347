"""Constants of this package, with their units."""

# Where prefixes are cached.
KEY_POSITIONS = 256  # positions for which one name of a prefix stands, at least
PROBE_NAMES = (
    128  # names in one probe: those of 32,768 positions, or of more that are further apart
)
REMEMBERED = 32_768  # names of prefixes whose chains a gateway remembers: those of 8 M positions
CHAINS_OF_ONE = 2  # chains that are remembered of one prefix
HOT_NAMES = 8_192  # names of prefixes that are counted to see which are common
HOT_DEPTH = 64  # … at the beginning of each prompt
HOT_WINDOW = 512  # requests after which all counts are halved
HOT_SHARE = (
    2.0  # a prefix that more than this share of a replica's requests has in common is common
)

# Predictions of a stage.
TIMES_MEMORY = 0.8  # weight of the old mean when one more step is measured
ROOM_LONGEST = 3600.0  # seconds, the longest time until there is room that a stage says

# Beliefs of a gateway.
STAGES_KNOWN = 4_096  # shards of which a gateway remembers how fast they were
AGREES = (
    3.0  # a claim counts if the least measured time is at most this much longer: prompts double
)
# the time of a step beside texts
GROWTH = 1.1  # factor by which the least measured time grows at most with a longer one
LATE_FACTOR, LATE_S = 3.0, 1.0  # an answer is late after this multiple of its prediction, plus s
LATE_USUAL = 2.0  # … if each is later than this multiple of the usual lateness
OPEN_KEPT = 16  # prompts at one stage of which is remembered when they were sent
LATE_ANSWERS = 4  # answers in a row that must be late before a stage is not believed
USUAL_UP, USUAL_DOWN = 1.1, 0.83  # factors by which an answer moves what is usual
LATE_HALF_LIFE = 300.0  # seconds after which half of that lateness is forgiven
LOAD_FRESH = 2.0  # seconds for which the reply to a probe is used
MISSED_FIRST = 5.0  # seconds for which a stage is not asked after it missed a probe …
MISSED_LONGEST = 300.0  # … and at most, because they double each time
WAIT_LONGEST = 600.0  # seconds, the longest wait that is believed
UNASKED_WAIT = 0.5  # seconds that a stage seems to need more if its load is unknown
LINK_S = 0.04  # seconds of a round trip between two peers that is not measured
NEW_LINK_S = 0.5  # seconds that a link takes that does not exist yet

# Measurements of chains.
MODELS_MEASURED = 32  # models whose chains are remembered
CHAINS_MEASURED = 64  # chains of one model whose seconds for a token are remembered …
PAIRS_MEASURED = 256  # … and pairs of stages
CHAINS_LOOKED = 8  # chains measured last that are compared with the predicted best one
MEASURED_TOKENS = 128  # last tokens of an answer of which the mean is taken
MEASURED_LEAST = 8  # … and at least
UNMEASURED = 1.02  # factor for a pair of stages that was not measured, if others were
MEASURED_HALF_LIFE = 300.0  # seconds after which a measurement counts half, a prediction the rest

# The choice.
PROBES_OF_REQUEST = 4  # probes for one request
PROBES_OF_STAGE = 2  # … for one stage of a chain, if it has several stages
EXPECTED_TOKENS = 128  # tokens of an answer that count in the choice of a chain
SPAN_ROWS = 256  # positions of a prompt that go through a chain together
LABELS = 16  # partial chains that are extended from one boundary of layers
LABELS_ALL = 2_048  # … in all, if more than one from each boundary
SHARDS_OF_PEER = 8  # shards of one model on one peer that are looked at
SHARDS_LOOKED = 512  # shards of one model that are looked at
ADMISSION_WAIT = 60.0  # seconds of waiting after which a request is refused: a chain that says
# nothing for TOKEN_TIMEOUT, twice that, fails anyway
RETRY_LEAST, RETRY_MOST = 1.0, 3600.0  # seconds that a refused client is told
