"""Constants of adapters, each with its unit."""

ADAPTER_BYTES = 1 << 30  # bytes of the largest adapter
HEAD_BYTES = 64 * 1024  # bytes of the largest head of an adapter file
HEAD_ITEMS = 8192  # elements of a head
CONFIG_BYTES = 1 << 20  # bytes of the largest adapter_config.json
CONFIG_DEPTH = 8  # nested containers in it
NAMES_BYTES = 4 << 20  # bytes of adapters.json
READ_BYTES = 8 << 20  # bytes of weights that an import has in memory at a time
FETCH_PATIENCE = 15.0  # seconds without a byte until a fetch for a waiting request fails
SCORED_BYTES = 256 << 20  # bytes of the largest adapter with which texts are scored
FETCHES = 4  # adapters that are fetched at once for the sessions of one gateway
